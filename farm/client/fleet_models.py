"""Machines, pools, projects, buffers and keys as the REST API answers them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from farm.client.models import Answer


class Node(Answer):
    """One machine; ``slots`` counts its slots by state."""

    id: str
    name: str
    state: str
    info: dict[str, Any] = Field(default_factory=dict)
    slots: dict[str, int] = Field(default_factory=dict)
    started_at: datetime | None = None
    seen_at: datetime | None = None


class GuardedNeighbour(Answer):
    """A language model service and what the guard makes of it. Latencies in milliseconds."""

    name: str
    role: str = "decode"
    condition: str = ""
    rung: str = "free"
    frozen: bool = False
    reason: str = ""
    trouble: str | None = None
    server: str | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    first_token_ms: float | None = None
    itl_p50_ms: float | None = None
    itl_p99_ms: float | None = None
    budget_ms: float | None = None
    share_over: float = 0.0


class Guard(Answer):
    """The guard of a node."""

    at: datetime | None = None
    rung: str = "free"
    reason: str = ""
    cpu_share: float | None = None
    neighbours: list[GuardedNeighbour] = Field(default_factory=list)


class Slot(Answer):
    """One worker process bound to one device."""

    id: str
    node_id: str
    name: str
    state: str
    node: str = ""
    pools: list[str] = Field(default_factory=list)
    device: dict[str, Any] = Field(default_factory=dict)
    pid: int | None = None
    warm: list[str] = Field(default_factory=list)
    hold_reason: str | None = None
    restarts: int = 0
    task_ids: list[str] = Field(default_factory=list)


class Pool(Answer):
    """A class of work and the slots that serve it."""

    name: str
    max_slots: int | None = None
    paused: bool = False
    slots: int = 0
    ready: int = 0
    busy: int = 0


class Project(Answer):
    """Who pays. ``used_*`` in slot-seconds and GPU-seconds."""

    id: str
    name: str
    share: float = 1.0
    max_slots: int | None = None
    quota_slot_s: float | None = None
    reserved: bool = False
    used_slot_s: float = 0.0
    used_gpu_s: float = 0.0


class Buffer(Answer):
    """A stretch of memory or storage that holds frame data."""

    id: str
    node_id: str
    medium: str
    purpose: str = ""
    bytes: int
    state: str
    task_id: str | None = None
    note: str | None = None
    created_at: datetime | None = None


class Budget(Answer):
    """How many bytes of a medium a node may hold, and holds."""

    node_id: str
    medium: str
    budget_bytes: int
    reserved_bytes: int


class Key(Answer):
    """A key without its secret; ``secret`` is set in the answer to making it, and never again."""

    id: str
    name: str
    hint: str = ""
    scopes: list[str] = Field(default_factory=list)
    project_id: str | None = None
    created_at: datetime | None = None
    used_at: datetime | None = None
    revoked_at: datetime | None = None
    secret: str | None = None
