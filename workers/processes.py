"""Slot processes as the agent sees them: start under a keeper, watch, signal, freeze, kill without rest.

``keeper.py`` explains the process tree. Nothing here touches CUDA or the database.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workers import keeper
from workers.cgroup import Cgroup

_KEEPER = Path(keeper.__file__)


def become_subreaper() -> None:
    """Take in orphans of our children, so that a killed keeper's processes are seen and ended.

    Raises :class:`OSError` where the kernel refuses.
    """
    keeper.prctl(keeper.PR_SET_CHILD_SUBREAPER, 1)


@dataclass(frozen=True, slots=True)
class ExitNote:
    """How a slot ended: exit code, or the signal that killed it; ``left`` processes could not be killed."""

    code: int | None
    signal: int | None
    left: int = 0

    def __str__(self) -> str:
        if self.signal is not None:
            name = signal.Signals(self.signal).name if self.signal in _SIGNAL_NUMBERS else str(self.signal)
            return f"killed by {name}"
        return f"ended with code {self.code}"


_SIGNAL_NUMBERS = frozenset(int(number) for number in signal.Signals)


class SlotProcess:
    """A slot under its keeper."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        output: Path,
        *,
        cpus: Iterable[int] = (),
        nice: int = 0,
        cgroup: Cgroup | None = None,
    ) -> None:
        """Start ``argv`` with exactly ``env``; what it prints is appended to the file ``output``.

        Must be called on the main thread: the parent-death signal follows the thread that forks.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("slots are started from the main thread: the parent-death signal follows it")
        self.cgroup = cgroup
        self.started_at = time.monotonic()
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        order = {
            "argv": list(argv),
            "agent": os.getpid(),
            "status_fd": write_fd,
            "cpus": sorted(cpus),
            "nice": nice,
            "cgroup": str(cgroup.folder) if cgroup else None,
        }
        try:
            with output.open("ab") as out:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_KEEPER), json.dumps(order)],
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    pass_fds=(write_fd,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        self._status_fd = read_fd
        self._said = b""
        self.pidfd = os.pidfd_open(self._keeper.pid)
        self.frozen = False

    @property
    def keeper_pid(self) -> int:
        """Process id of the keeper, below which everything of this slot lives."""
        return self._keeper.pid

    @property
    def slot_pid(self) -> int | None:
        """Process id of the slot, once the keeper has said it."""
        for words in self._lines():
            if words[0] == "pid":
                return int(words[1])
        return None

    def alive(self) -> bool:
        """Whether the keeper still runs."""
        return self._keeper.poll() is None

    def ask_to_end(self) -> None:
        """SIGTERM to the slot, which parks its task and ends."""
        self._signal(signal.SIGUSR1)

    def kill(self) -> None:
        """End the slot and everything below it; returns at once, the pidfd tells when it is done."""
        self.thaw()
        if self.cgroup is not None:
            self.cgroup.kill()
        self._signal(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop the slot and all that is below it where they stand."""
        self.frozen = True
        if self.cgroup is not None and self.cgroup.freeze(True):
            return
        _signal_all(keeper.descendants(self.keeper_pid), signal.SIGSTOP)

    def thaw(self) -> None:
        """Let go of what :meth:`freeze` stopped."""
        if not self.frozen:
            return
        self.frozen = False
        if self.cgroup is not None and self.cgroup.freeze(False):
            return
        _signal_all(reversed(keeper.descendants(self.keeper_pid)), signal.SIGCONT)

    def collect(self, wait_s: float = 8.0) -> ExitNote:
        """Wait for the keeper's end and clear up; kills the keeper when it takes over ``wait_s``."""
        try:
            self._keeper.wait(wait_s)
        except subprocess.TimeoutExpired:
            below = keeper.descendants(self.keeper_pid)
            self._keeper.kill()
            self._keeper.wait()
            _signal_all(below, signal.SIGKILL)
        note = ExitNote(None, int(signal.SIGKILL))
        left = 0
        for words in self._lines():
            if words[0] == "exit":
                note = ExitNote(int(words[1]), None)
            elif words[0] == "signal":
                note = ExitNote(None, int(words[1]))
            elif words[0] == "left":
                left = int(words[1])
        os.close(self._status_fd)
        self._status_fd = -1
        os.close(self.pidfd)
        if self.cgroup is not None:
            self.cgroup.remove()
        return ExitNote(note.code, note.signal, left)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._keeper.send_signal(number)

    def _lines(self) -> list[list[str]]:
        with contextlib.suppress(BlockingIOError):
            while self._status_fd >= 0 and (chunk := os.read(self._status_fd, 4096)):
                self._said += chunk
        whole, _, _ = self._said.rpartition(b"\n")
        return [line.split() for line in whole.decode().splitlines() if line]


def end_strays(known: Iterable[int]) -> list[int]:
    """Kill and reap children of ours that are not ``known``: what a killed keeper left to us; their ids."""
    known = set(known)
    strays = [pid for pid in keeper.children(os.getpid()) if pid not in known]
    for pid in strays:
        _signal_all([*keeper.descendants(pid), pid], signal.SIGKILL)
    for pid in strays:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    return strays


def end_orphans() -> list[int]:
    """For a slot: kill what its tasks left behind, which the keeper (our parent) has taken in; their ids.

    Does nothing in a process that was not started by a keeper.
    """
    if os.environ.get(keeper.KEEPER_VARIABLE) != str(os.getppid()):
        return []
    orphans = [child for child in keeper.children(os.getppid()) if child != os.getpid()]
    for orphan in orphans:
        _signal_all([*keeper.descendants(orphan), orphan], signal.SIGKILL)
    return orphans


def _signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def trim_memory() -> None:
    """Give freed heap back to the system, after an engine was closed (glibc only)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
