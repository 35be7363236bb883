"""A renderer's child with its scene loaded: asking, waiting, watching time and memory, taking its files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from farm.errors import (
    DeviceUnavailable,
    EscapedPath,
    NotInstalled,
    PermanentFailure,
    TaskFailed,
    TimedOut,
)
from jobs.engine import Host
from jobs.render.child_process import Child, ChildDied

_POLL_S: Final = 0.05
_MEMORY_EVERY_S: Final = 0.5
PARK_PATIENCE_S: Final = 5.0
"""A frame that is nearly done when the slot is wanted back gets this long; then its pixels are dropped."""


@dataclass(slots=True)
class Clock:
    """Time that counts against a frame's limit: holding by the farm does not."""

    limit: float
    left: float = field(init=False)
    seen: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.left = self.limit

    def skip(self) -> None:
        """Forget the time since the last look."""
        self.seen = time.monotonic()

    def spend(self) -> bool:
        """Count the time since the last look; whether the limit is passed."""
        now = time.monotonic()
        self.left -= now - self.seen
        self.seen = now
        return self.left < 0


@dataclass(slots=True)
class Held:
    """A child that is open for one ``key``. ``facts`` is what loading found, ``limit`` bytes of memory."""

    child: Child
    key: str
    limit: int
    facts: dict[str, Any] = field(default_factory=dict)
    asked: int = 0
    """Answers that the child still owes; a child that owes some belongs to the task that asked."""
    after_task: Callable[[], object] = lambda: None
    """What a driver has to do when a task of the child is done."""

    @property
    def idle(self) -> bool:
        """Whether the child lives and owes nothing."""
        return self.child.alive() and self.asked == 0

    def end(self, *, politely: bool) -> None:
        """End the child and remove its folder."""
        self.child.end(politely=politely)
        shutil.rmtree(self.child.room.output, ignore_errors=True)

    def ask(self, op: str, **request: Any) -> None:
        """Ask the child for something that it will answer."""
        self.asked += 1
        self.child.send(op=op, **request)

    def wait(
        self,
        events: tuple[str, ...],
        what: str,
        clock: Clock,
        host: Host,
        *,
        number: int | None = None,
        share: tuple[float, float] = (0.0, 0.0),
    ) -> dict[str, Any]:
        """The next of ``events``; checks the farm's wishes, the clock and the child's memory meanwhile.

        ``share`` is where this work begins in the task's progress and how much of it it is.
        """
        looked = time.monotonic()
        while True:
            clock.spend()
            host.check()
            clock.skip()
            try:
                answer = self.child.receive(_POLL_S, host.log)
            except ChildDied as error:
                raise TaskFailed(f"{what}: {error.message}{self._last_seen(error)}") from None
            # a child that talks all the time is timed as well as a silent one
            waiting = answer is None or answer["event"] == "progress"
            if clock.spend() and waiting:
                raise TimedOut(
                    f"{what} took longer than {clock.limit:g} s; raise frame_timeout_s or lower samples"
                )
            if waiting and time.monotonic() - looked > _MEMORY_EVERY_S:
                looked = time.monotonic()
                self._watch_memory(what)
            if answer is None:
                continue
            if answer["event"] == "progress":
                done = min(1.0, max(0.0, float(answer["fraction"])))
                host.progress(share[0] + share[1] * done, f"{what}: {done:.1%}")
            elif answer["event"] == "error":
                self.asked -= 1
                raise self._error(answer, what)
            elif answer["event"] in events and (number is None or answer.get("number") == number):
                self.asked -= 1
                return answer
            else:
                raise TaskFailed(f"{what}: the renderer answered {json.dumps(answer)[:200]} out of turn")

    def finish_soon(self, number: int, host: Host) -> dict[str, Any] | None:
        """The frame in work, if it is done within the patience that a parked slot has."""
        deadline = time.monotonic() + PARK_PATIENCE_S
        while time.monotonic() < deadline:
            answer = self.child.receive(_POLL_S, host.log)
            if answer and answer["event"] == "frame" and answer["number"] == number:
                self.asked -= 1
                return answer
            if answer and answer["event"] == "error":
                return None
        return None

    def take(self, answer: Mapping[str, Any], scratch: Path, what: str) -> dict[str, Path]:
        """Bring the files of an answer into ``scratch``: output name to path."""
        files = {}
        for output, name in dict(answer["files"]).items():
            made = self.child.room.output / Path(str(name)).name
            files[str(output)] = take_file(made, scratch, f"{what}: {output}")
        return files

    def _last_seen(self, error: ChildDied) -> str:
        """How much memory a child that died had, where that may be why."""
        if self.child.bounds.ran_out() or error.message.endswith("SIGKILL"):
            return f": out of memory, perhaps; {self._memory()}"
        return f" ({self._memory()})" if self.child.peak() else ""

    def _memory(self) -> str:
        return f"its peak was {self.child.peak() / 2**30:.2f} GiB, its limit {self.limit / 2**30:.2f} GiB"

    def _watch_memory(self, what: str) -> None:
        used = self.child.resident()
        if used > self.limit:
            raise TaskFailed(
                f"{what}: the renderer used {used / 2**30:.2f} GiB, over its limit of "
                f"{self.limit / 2**30:.2f} GiB; raise memory_limit or make the scene smaller"
            )

    def _error(self, answer: Mapping[str, Any], what: str) -> TaskFailed | NotInstalled:
        """The farm's error for a child's; the child's own folders are taken out of the words."""
        words = str(answer.get("message", ""))
        for folder in {str(self.child.inputs), str(self.child.room.inputs)}:
            words = words.replace(f"{folder}/", "")
        if answer.get("kind") == "memory":
            return TaskFailed(f"{what}: out of memory; {self._memory()}: {words}")
        kind = _ERRORS.get(str(answer.get("kind")), TaskFailed)
        return kind(words if words.startswith(what) else f"{what}: {words}")


_ERRORS: Final[dict[str, type[TaskFailed] | type[NotInstalled]]] = {
    "permanent": PermanentFailure,
    "escaped": EscapedPath,
    "device": DeviceUnavailable,
    "not_installed": NotInstalled,
}


def take_file(made: Path, scratch: Path, what: str) -> Path:
    """Copy a file out of a child's folder into ``scratch``, and remove it there.

    The child reads untrusted scenes: what is no plain file of its own (a link, a device, a second name of
    another file) is refused with :class:`farm.errors.TaskFailed`. A copy, because the child may keep the file
    open and write to it after it was checked.
    """
    target = scratch / made.name
    try:
        handle = os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise TaskFailed(f"{what} was not written by the renderer") from None
    except OSError:
        raise TaskFailed(f"{what} is not a plain file") from None
    info = os.fstat(handle)
    if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
        os.close(handle)
        raise TaskFailed(f"{what} is not a plain file")
    with os.fdopen(handle, "rb") as source, target.open("xb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
    with contextlib.suppress(OSError):
        made.unlink()
    return target
