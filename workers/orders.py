"""What the agent asks of an attempt, decided from what is known: a pure function."""

from __future__ import annotations

from dataclasses import dataclass

from farm.settings import Settings
from gpu_pinning.guard.decide import Rung
from workers.control import Command
from workers.limits import Limits
from workers.repository import HeldTask

SLOW_DUTY = 50
"""Share of the time, in percent, that host work gets on the guard's second rung."""


@dataclass(frozen=True, slots=True)
class GuardWish:
    """What the guard asks of one slot's attempt."""

    rung: Rung = Rung.FREE
    reason: str = ""
    host_work: bool = False
    """The slot works on cores alone, so that slowing it down helps neighbours on any GPU."""
    grace_s: float | None = None
    """How long parking may take before the slot is ended; None: as long as it needs."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """All that bears on the attempt that a slot is on."""

    held: HeldTask | None
    """What the database said of it; ``None`` while the database has not been asked yet."""
    fenced: bool
    slot_state: str
    limits: Limits
    database_silent_s: float
    stopping: str
    """Why the slot's process is to end; empty: it is not."""
    draining: bool = False
    """Whether people drain the node."""
    guard: GuardWish | None = None
    """What the guard asks; ``None``: it does not hold this slot."""


@dataclass(frozen=True, slots=True)
class Order:
    """A command, why, and after how many seconds the slot is killed if the attempt has not ended by then."""

    command: Command
    reason: str = ""
    grace_s: float | None = None
    duty: int = 100
    """Percentage of the time that ``THROTTLE`` leaves."""


def order(now: Circumstances, settings: Settings) -> Order:
    """The strictest that applies: fence, cancel, expire, park, pause, run."""
    if now.fenced:
        return Order(Command.FENCE, "the attempt is over", settings.cancel_grace_s)
    held = now.held
    if held is not None and held.wish == "cancel":
        return Order(Command.CANCEL, "cancelled", settings.cancel_grace_s)
    if held is not None:
        expired = now.limits.expired(held.timeout_s, held.no_progress_s)
        if expired == "timeout":
            reason = f"the attempt passed its time limit of {held.timeout_s:g} s"
            return Order(Command.EXPIRE, reason, settings.cancel_grace_s)
        if expired == "no_progress":
            return Order(Command.EXPIRE, f"no progress for {held.no_progress_s:g} s", settings.cancel_grace_s)
    if now.database_silent_s >= settings.database_away_park_s:
        reason = f"the database has been away for {settings.database_away_park_s:g} s"
        return Order(Command.PARK, reason, settings.database_away_kill_s)
    if now.stopping:
        return Order(Command.PARK, now.stopping, None)
    if now.draining:
        return Order(Command.PARK, "the node is drained", settings.park_grace_s)
    if held is not None and held.wish == "park":
        return Order(Command.PARK, "parked by the farm", settings.park_grace_s)
    if now.guard is not None:
        return _guarded(now.guard)
    if now.slot_state == "held":
        return Order(Command.PAUSE, "the slot is held")
    return Order(Command.RUN)


def _guarded(guard: GuardWish) -> Order:
    """What a rung means for one attempt; the slot's own hold in the database is the guard's then."""
    if guard.rung >= Rung.KILL:
        return Order(Command.PARK, guard.reason, 0.0)
    if guard.rung is Rung.PARK:
        return Order(Command.PARK, guard.reason, guard.grace_s)
    if guard.rung is Rung.PAUSE:
        return Order(Command.PAUSE, guard.reason)
    if guard.rung is Rung.SLOW_HOST and guard.host_work:
        return Order(Command.THROTTLE, guard.reason, duty=SLOW_DUTY)
    return Order(Command.RUN)
