"""Nodes, slots, pools, buffers and byte budgets."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from api.models.common import In, Out, Time, example


def _without_guard(info: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if name != "guard"}


class Node(Out):
    """One machine."""

    id: str
    name: str
    state: str = Field(description="up, draining, drained or down")
    info: Annotated[dict[str, Any], AfterValidator(_without_guard)] = Field(
        description="What its agent says of the machine; its guard has a resource of its own"
    )
    slots: dict[str, int] = Field(default_factory=dict, description="How many slots are in each state")
    version: int
    started_at: Time
    seen_at: Time


class Slot(Out):
    """One worker process bound to one device."""

    id: str
    node_id: str
    node: str
    name: str
    pools: list[str]
    device: dict[str, Any]
    state: str = Field(description="starting, idle, busy, held, draining or dead")
    pid: int | None
    warm: list[str]
    hold_reason: str | None
    restarts: int
    changed_at: Time
    beat_at: Time | None
    task_ids: list[str] = Field(default_factory=list, description="Tasks that it holds and you may see")


class Pool(Out):
    """A class of work and the slots that serve it."""

    name: str
    max_slots: int | None = Field(description="Most slots at once; null: no cap")
    paused: bool
    slots: int = Field(description="Slots that serve it")
    ready: int = Field(description="Tasks that wait for a slot")
    busy: int = Field(description="Tasks dispatched or running")
    version: int


class PoolChange(In):
    """What may be changed on a pool."""

    model_config = example(max_slots=4, paused=False)

    max_slots: Annotated[int | None, Field(ge=0, le=1_000_000)] = None
    paused: bool | None = None


class Buffer(Out):
    """A stretch of memory or storage that holds frame data."""

    id: str
    node_id: str
    slot_id: str | None
    medium: str
    purpose: str
    dtype: str | None
    shape: list[int] | None
    bytes: int
    task_id: str | None
    attempt_id: str | None
    epoch: int | None
    state: str
    sha256: str | None
    note: str | None
    created_at: Time
    changed_at: Time


class Budget(Out):
    """How much of a medium a node may hold, and holds."""

    node_id: str
    medium: str
    budget_bytes: int
    reserved_bytes: int
