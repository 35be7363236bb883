"""The guard of a node: how far it holds the farm back, and what its neighbours feel."""

from __future__ import annotations

from pydantic import Field

from api.models.common import Out, Time


class GuardedNeighbour(Out):
    """One language model service that the farm must not disturb. Latencies in milliseconds."""

    name: str
    role: str = Field(description="decode or prefill; prefill is shown and not judged")
    url: str | None = None
    server: str | None = Field(default=None, description="What serves, as its metrics page tells")
    condition: str = Field(description="serving, idle, starting, stopped or lost")
    running: float | None = Field(
        default=None, description="Requests being decoded, the farm's probe included"
    )
    waiting: float | None = None
    kv_usage: float | None = None
    first_token_ms: float | None = Field(
        default=None, description="Median time to first token since its start"
    )
    itl_p50_ms: float | None = Field(default=None, description="Inter-token latency over ten seconds")
    itl_p99_ms: float | None = Field(default=None, description="Worst p99 of a quarter second in those ten")
    budget_ms: float | None = Field(
        default=None, description="Longest step that counts as normal; null: not learnt"
    )
    budget_doubt_ms: float | None = None
    learnt_steps: int | None = Field(
        default=None, description="Quiet steps at this load; null: a fixed budget"
    )
    rung: str = Field(description="free, no_new_work, slow_host, pause, park or kill")
    frozen: bool = Field(default=False, description="Farm work on its own GPU is frozen")
    share_over: float = Field(default=0.0, description="Share of decode steps over budget")
    reason: str = ""
    trouble: str | None = Field(default=None, description="Why it cannot be read at the moment")
    curve: list[list[float | None]] = Field(
        default_factory=list,
        description="The last minute: seconds before `at`, p50, p99 and budget of each quarter second",
    )


class Guard(Out):
    """The guard of a node; no neighbours where none is declared with a URL."""

    at: Time | None = Field(default=None, description="When the node told this; null: never")
    rung: str = "free"
    reason: str = ""
    cpu_share: float | None = Field(default=None, description="Share of one core that the guard itself uses")
    neighbours: list[GuardedNeighbour] = Field(default_factory=list)
