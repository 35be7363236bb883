"""What the agent asks of an attempt, decided from what is known: a pure function."""

from __future__ import annotations

from dataclasses import dataclass

from farm.settings import Settings
from workers.control import Command
from workers.limits import Limits
from workers.repository import HeldTask


@dataclass(frozen=True, slots=True)
class Circumstances:
    """All that bears on the attempt that a slot is on."""

    held: HeldTask | None
    """What the database said of it; ``None`` while the database has not been asked yet."""
    fenced: bool
    slot_state: str
    limits: Limits
    database_silent_s: float
    stopping: bool


@dataclass(frozen=True, slots=True)
class Order:
    """A command, why, and after how many seconds the slot is killed if the attempt has not ended by then."""

    command: Command
    reason: str = ""
    grace_s: float | None = None


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
        return Order(Command.PARK, "the node's agent is stopping", None)
    if held is not None and held.wish == "park":
        return Order(Command.PARK, "parked by the farm", settings.park_grace_s)
    if now.slot_state == "held":
        return Order(Command.PAUSE, "the slot is held")
    return Order(Command.RUN)
