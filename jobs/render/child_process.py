"""The slot's side of a renderer's child: start it confined, talk in JSON lines, watch it, end it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from farm.errors import TaskFailed
from jobs.engine import Log
from jobs.render.bounds import Bounds, Limits
from jobs.render.sandbox import Program, Room, confinement, seal

_READ: Final = 65_536
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_LONGEST_LINE: Final = 16 * 2**20
END_GRACE_S: Final = 2.0


class ChildDied(TaskFailed):
    """The renderer's process ended by itself."""

    slug = "child-died"


class Child:
    """One child process. Not thread-safe; start it from the slot's main thread (parent-death signal)."""

    def __init__(self, program: Program, room: Room, env: Mapping[str, str], limits: Limits) -> None:
        self.room = room
        self.bounds = Bounds.make(limits)
        sealed = seal(program, room, env, self.bounds)
        if sealed.user is not None:
            for path in (room.output, *room.output.iterdir()):
                os.chown(path, sealed.user, sealed.user)
            # bubblewrap enters it before the child becomes that user
            room.output.chmod(0o711)
        self.inputs = sealed.inputs
        self.output = sealed.output
        self.confinement = confinement()
        self._process = subprocess.Popen(
            sealed.argv,
            env=sealed.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=room.output,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._selector = selectors.DefaultSelector()
        for stream, name in ((self._process.stdout, "answers"), (self._process.stderr, "log")):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, name)
        self._partial = b""
        self._answers: deque[dict[str, Any]] = deque()
        self._last_words: deque[bytes] = deque(maxlen=40)
        self._open = 2
        self._peak = 0

    @property
    def pid(self) -> int:
        """Process id; also the id of its process group."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def send(self, **request: Any) -> None:
        """Ask for something; a child that has gone is noticed by the next :meth:`receive`."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self, timeout: float, log: Log) -> dict[str, Any] | None:
        """The next answer, or ``None`` when none came in ``timeout`` seconds; its log goes to ``log``.

        Raises :class:`ChildDied` when the process has ended and nothing is left to read.
        """
        deadline = time.monotonic() + timeout
        while not self._answers:
            wait = max(0.0, deadline - time.monotonic())
            self._pump(wait, log)
            if self._answers:
                break
            # a grandchild may hold the pipes open long after the renderer has gone
            gone = not self.alive() and not self._selector.select(0)
            if self._open == 0 or gone:
                raise ChildDied(self._obituary())
            if time.monotonic() >= deadline:
                return None
        return self._answers.popleft()

    def _pump(self, wait: float, log: Log) -> None:
        for key, _ in self._selector.select(wait):
            try:
                data = os.read(key.fd, _READ)
            except BlockingIOError:
                continue
            if not data:
                self._selector.unregister(key.fileobj)
                self._open -= 1
            elif key.data == "log":
                self._last_words.append(data)
                _write_all(log.fileno(), data)
            else:
                self._partial += data
                *lines, self._partial = self._partial.split(b"\n")
                if len(self._partial) > _LONGEST_LINE:
                    raise TaskFailed("the renderer sent a line without end")
                for line in lines:
                    self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            answer = json.loads(line)
        except ValueError:
            raise TaskFailed(f"the renderer answered something that is not JSON: {line[:200]!r}") from None
        if not isinstance(answer, dict) or not isinstance(answer.get("event"), str):
            raise TaskFailed(f"the renderer answered without an event: {line[:200]!r}")
        self._answers.append(answer)

    def _obituary(self) -> str:
        try:
            code = self._process.wait(timeout=END_GRACE_S)
        except subprocess.TimeoutExpired:
            return "the renderer closed its pipes and hangs"
        number = -code if code < 0 else code - 128 if 128 < code < 193 else 0
        if number:
            with contextlib.suppress(ValueError):
                return f"the renderer was killed by {signal.Signals(number).name}"
            return f"the renderer was killed by signal {number}"
        words = b"".join(self._last_words).decode("utf-8", "replace").strip().splitlines()
        return f"the renderer ended with status {code}" + (f": {words[-1][:300]}" if words else "")

    def renderer(self) -> int:
        """Process id of the renderer itself: the innermost descendant, below what confines it."""
        pid = self.pid
        while children := _children(pid):
            pid = children[0]
        return pid

    def describe(self) -> str:
        """How the child is confined and what limits hold for it, as both read back now."""
        return f"{self.confinement.describe()}, {self.bounds.describe(self.renderer())}".rstrip(", ")

    def peak(self) -> int:
        """The most memory that the child was seen to hold, in bytes."""
        return max(self._peak, self.bounds.peak() or 0)

    def resident(self) -> int:
        """Memory that the child and all its descendants hold, in bytes."""
        total, waiting = 0, [self.pid]
        while waiting:
            pid = waiting.pop()
            with contextlib.suppress(OSError, ValueError, IndexError):
                total += int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
            waiting += _children(pid)
        self._peak = max(self._peak, total)
        return total

    def kill(self) -> None:
        """Kill the whole group without waiting for it; :meth:`end` clears up. Never raises."""
        # the group may outlive its leader: a grandchild must not hold the device or a pipe
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self, *, politely: bool = True) -> None:
        """End the process and its whole group; a polite child gets two seconds. Never raises."""
        with contextlib.suppress(OSError, ValueError):
            if politely and self.alive():
                self.send(op="end")
                assert self._process.stdin
                self._process.stdin.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=END_GRACE_S)
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            self._process.wait(timeout=10)
        self._selector.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError, ValueError):
                if stream:
                    stream.close()
        self.bounds.remove()


def _children(pid: int) -> list[int]:
    """Children of a process. The kernel's own list where it keeps one: asking every process takes long."""
    try:
        tasks = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    if tasks:
        return [int(child) for text in tasks for child in text.split()]
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
