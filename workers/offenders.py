"""Slots whose work on a neighbour's own GPU had to be frozen again and again: it has to go on elsewhere.

Freezing stops the harm and not its cause: let go, the same work breaches again. After the second freeze
within a few minutes the attempt parks (free of charge, for another slot to take) and its slot takes nothing
for a while, which doubles each time. Pure bookkeeping.
"""

from __future__ import annotations

from dataclasses import dataclass, field

AFTER = 2
WITHIN_S = 180.0
AWAY_S = 120.0
AWAY_MOST_S = 3600.0
_FORGET_S = 3 * 3600.0


@dataclass(slots=True)
class _Record:
    frozen_at: list[float] = field(default_factory=list)
    away_s: float = 0.0
    until: float = 0.0


class Offenders:
    """Times in monotonic seconds."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def froze(self, slot_id: str, now: float) -> bool:
        """A slot's work was frozen; true where that makes it leave."""
        record = self._records.setdefault(slot_id, _Record())
        if record.until > now:
            return False
        record.frozen_at = [at for at in record.frozen_at if now - at <= WITHIN_S] + [now]
        if len(record.frozen_at) < AFTER:
            return False
        fresh = record.away_s == 0 or now - record.until > _FORGET_S
        record.away_s = AWAY_S if fresh else min(AWAY_MOST_S, 2 * record.away_s)
        record.until = now + record.away_s
        record.frozen_at = []
        return True

    def away(self, slot_id: str, now: float) -> bool:
        """Whether the slot is to stay empty."""
        record = self._records.get(slot_id)
        return record is not None and now < record.until

    def reason(self, slot_id: str) -> str:
        """Why, for people."""
        away_s = self._records[slot_id].away_s
        return f"guard: frozen {AFTER} times on a neighbour's GPU: work goes on elsewhere for {away_s:.0f} s"
