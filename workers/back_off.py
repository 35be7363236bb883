"""How long a slot that died waits before it is started again. Pure; times in monotonic seconds."""

from __future__ import annotations

_WAITS_S = (0.0, 0.0, 0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""By the number of quick deaths in a row: the first two are followed by a start at once."""
_FIRST_WAIT = 3
_SETTLED_S = 30.0
_FORGOTTEN_S = 60.0


class BackOff:
    """One slot's deaths."""

    def __init__(self) -> None:
        self._deaths = 0
        self._died_at = 0.0

    def died(self, now: float, lived_s: float, *, worked: bool) -> None:
        """A process life is over. ``worked``: it took tickets, or was ended by us, and is no sign of trouble.

        A task that kills its slot again and again is bounded by its retries.
        """
        if worked or lived_s > _SETTLED_S:
            self._deaths = 0
            return
        if now - self._died_at > _FORGOTTEN_S:
            self._deaths = 0
        self._deaths += 1
        self._died_at = now

    def failed_start(self, now: float) -> None:
        """It could not even be started: trying again at once would be of no use."""
        self._deaths = max(_FIRST_WAIT, self._deaths + 1)
        self._died_at = now

    def wait_s(self) -> float:
        """How long to wait before the next start."""
        return _WAITS_S[min(self._deaths, len(_WAITS_S) - 1)]
