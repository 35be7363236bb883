"""A run of `farm bench stillness --live` on the API's machine, as it happens."""

from __future__ import annotations

from pydantic import Field

from api.models.common import Out, Time


class StillnessVerdict(Out):
    """How a run ended."""

    verdict: str = Field(description="still, disturbed, void or inconclusive")
    reasons: list[str] = Field(default_factory=list)


class Stillness(Out):
    """The run that goes on, or the last one."""

    at: Time = Field(description="When the run told this last")
    began_at: Time
    decode: str = Field(description="What decodes")
    loads: list[str] = Field(default_factory=list, description="The farm's work in its fence, in words")
    hurt: bool = Field(default=False, description="Whether isolation is switched off at times")
    arm: str | None = Field(
        default=None, description="placebo, farm, fenced, spare, loose, control or alone; null: warm-up"
    )
    working: bool = Field(default=False, description="Whether farm work runs at this moment")
    isolation: bool | None = Field(default=None, description="Whether it is fenced; null: none runs")
    note: str = ""
    rates: dict[str, float] = Field(default_factory=dict, description="Units per second by pool")
    units: dict[str, int] = Field(default_factory=dict, description="Units so far by pool")
    pictures: list[str] = Field(default_factory=list, description="Pools with a last picture")
    points: list[tuple[float, float | None, float | None, str | None, bool]] = Field(
        default_factory=list,
        description="The last two minutes: seconds after `began_at`, p50 and p99 of a quarter second in "
        "milliseconds (null: no step), arm, and whether farm work ran",
    )
    over: StillnessVerdict | None = Field(default=None, description="Null: it goes on")
