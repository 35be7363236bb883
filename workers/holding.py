"""How an attempt obeys the control word: run, throttle, stand still, or end by raising."""

from __future__ import annotations

import time

from farm.errors import CancelRequested, FencedOff, ParkRequested, TimedOut
from farm.records import ClaimedTask
from workers.control import COMMAND_WORD, Command, SlotControl, unpack
from workers.phases import PhaseClock

_POLL_S = 0.002
_POLL_SLOW_S = 0.02
_THROTTLE_MOST_S = 1.0
_ALARMED = -1


class Obedience:
    """The control word of one attempt; :meth:`check` is the engines' ``host.check``.

    Between two words that ask for nothing, a check is one comparison. :meth:`alarm` may be called from a
    signal handler or another thread.
    """

    def __init__(self, control: SlotControl, task: ClaimedTask, clock: PhaseClock) -> None:
        self._control = control
        self._task = task
        self._clock = clock
        self._read = control.word
        self._words = control.words
        self._calm = 0
        self._alarm: type[ParkRequested | FencedOff] | None = None
        self._worked_since = time.monotonic()

    def alarm(self, error: type[ParkRequested | FencedOff]) -> None:
        """Let the next check raise this, whatever the word says."""
        if self._alarm is not FencedOff:
            self._alarm = error
        self._calm = _ALARMED

    def fenced(self) -> bool:
        """Whether the database has said that this attempt is over."""
        return self._alarm is FencedOff

    def check(self) -> None:
        """Obey; see :meth:`jobs.engine.Host.check`."""
        if self._words[COMMAND_WORD] != self._calm:
            self._obey()

    def _obey(self) -> None:
        paused_at: float | None = None
        while True:
            if self._alarm is not None:
                raise self._alarm()
            word = self._read()
            serial, duty, command = unpack(word)
            if serial != self._task.serial or command is Command.RUN:
                self._calm = word
                if self._alarm is not None:
                    continue
                break
            self._control.obeyed(word)
            if command is Command.PAUSE:
                paused_at = paused_at or time.monotonic()
                with self._clock.phase("held"):
                    time.sleep(_POLL_S if time.monotonic() - paused_at < 1.0 else _POLL_SLOW_S)
                self._control.held(self._clock.held_s())
            elif command is Command.THROTTLE:
                self._throttle(word, duty)
                break
            else:
                self._end(command)
        self._worked_since = time.monotonic()

    def _throttle(self, word: int, duty: int) -> None:
        worked = time.monotonic() - self._worked_since
        until = time.monotonic() + min(_THROTTLE_MOST_S, worked * (100 - duty) / max(1, duty))
        with self._clock.phase("held"):
            while (left := until - time.monotonic()) > 0 and self._read() == word and self._alarm is None:
                time.sleep(min(left, _POLL_SLOW_S))
        self._control.held(self._clock.held_s())

    def _end(self, command: Command) -> None:
        if command is Command.PARK:
            raise ParkRequested()
        if command is Command.CANCEL:
            raise CancelRequested()
        if command is Command.FENCE:
            raise FencedOff()
        limit = self._task.timeout_s
        running = time.monotonic() - self._clock.started_at - self._clock.held_s()
        if limit is not None and running >= limit:
            raise TimedOut(f"the attempt passed its time limit of {limit:g} s")
        raise TimedOut(f"no progress for {self._task.no_progress_s:g} s")
