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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workers import keeper

if TYPE_CHECKING:
    # a slot imports this module too, and must be ready soon after it was started
    from gpu_pinning import Fence
    from gpu_pinning.group import Setting

_KEEPER = Path(keeper.__file__)
_MPS_MARK = b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="
_FREEZE_S = 1.0


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
    """A slot under its keeper, and behind its fence where it is given one (which must stand applied)."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        output: Path,
        fence: Fence | None = None,
    ) -> None:
        """Start ``argv`` with exactly ``env``; what it prints is appended to the file ``output``.

        Must be called on the main thread: the parent-death signal follows the thread that forks.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("slots are started from the main thread: the parent-death signal follows it")
        self.fence = fence
        self.gentle = fence is not None and not fence.slot.kill_allowed
        self.started_at = time.monotonic()
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        order = {
            # the keeper sees to the end of what it starts, so the launcher need not
            "argv": fence.command(list(argv), die_with_us=False) if fence else list(argv),
            "agent": os.getpid(),
            "status_fd": write_fd,
            "gentle": self.gentle,
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
        self._frozen_at = 0.0
        self.before_thaw: Callable[[float], None] | None = None
        """Hears how long it stood frozen, while it still does."""

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

    def launched(self) -> list[Setting] | None:
        """What the launcher read back of its fence; None before it has said so, or without a fence."""
        pid = self.slot_pid
        return self.fence.launched(pid) if self.fence is not None and pid is not None else None

    def alive(self) -> bool:
        """Whether the keeper still runs."""
        return self._keeper.poll() is None

    def ask_to_end(self) -> None:
        """SIGTERM to the slot, which parks its task and ends."""
        self._signal(signal.SIGUSR1)

    def kill(self) -> None:
        """End the slot and everything below it; returns at once, the pidfd tells when it is done.

        A slot that may not be killed (MPS) is asked to end, and ends when it does.
        """
        self.thaw()
        if self.fence is not None and not self.gentle:
            self.fence.group.strike()
        self._signal(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop the slot and all that is below it where they stand."""
        if not self.frozen:
            self._frozen_at = time.monotonic()
        self.frozen = True
        if self.fence is not None and "freeze" in self.fence.group.folders:
            with contextlib.suppress(self._fence_error()):
                # one that is not seen frozen in time, in a long system call, stops when it leaves that
                self.fence.group.freeze(_FREEZE_S)
            return
        _signal_all(keeper.descendants(self.keeper_pid), signal.SIGSTOP)

    def thaw(self) -> None:
        """Let go of what :meth:`freeze` stopped."""
        if not self.frozen:
            return
        self.frozen = False
        if self.before_thaw is not None:
            self.before_thaw(time.monotonic() - self._frozen_at)
        if self.fence is not None and "freeze" in self.fence.group.folders:
            with contextlib.suppress(self._fence_error()):
                self.fence.group.thaw(_FREEZE_S)
            return
        _signal_all(reversed(keeper.descendants(self.keeper_pid)), signal.SIGCONT)

    def collect(self, wait_s: float = 8.0) -> ExitNote:
        """Wait for the keeper's end and clear up; kills the keeper when it takes over ``wait_s``.

        The slot's group is empty then, or what is left in it is counted as ``left``.
        """
        try:
            self._keeper.wait(wait_s)
        except subprocess.TimeoutExpired:
            below = keeper.descendants(self.keeper_pid)
            self._keeper.kill()
            self._keeper.wait()
            _end_all(below)
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
        if self.fence is not None and self.fence.group.pids() and not self.gentle:
            with contextlib.suppress(self._fence_error()):
                self.fence.group.kill(2.0)
            left = max(left, len(self.fence.group.pids()))
        return ExitNote(note.code, note.signal, left)

    @staticmethod
    def _fence_error() -> type[Exception]:
        from gpu_pinning import FenceError

        return FenceError

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
    """Kill and reap children of ours that are not ``known``: what a killed keeper left to us; their ids.

    A keeper leads a session of its own, so nothing below it is ever in ours. A child in our session is a
    program that one of our threads runs (``systemd-detect-virt``, say), and is let be.
    """
    known = set(known)
    strays = [pid for pid in keeper.children(os.getpid()) if pid not in known and not _in_our_session(pid)]
    gentle = {pid for pid in strays if _of_mps(pid)}
    for pid in strays:
        _end_all([*keeper.descendants(pid), pid])
    for pid in strays:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG if pid in gentle else 0)
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


def _in_our_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == os.getsid(0)
    except ProcessLookupError:
        # reaped meanwhile, which only whoever started it does
        return True


def _of_mps(pid: int) -> bool:
    """Whether a process is a client of MPS, and must not be killed."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(part.startswith(_MPS_MARK) for part in environment)


def _end_all(pids: Iterable[int]) -> None:
    """SIGKILL, or SIGTERM where a kill would take a neighbour down."""
    for pid in pids:
        _signal_all([pid], signal.SIGTERM if _of_mps(pid) else signal.SIGKILL)


def _signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def trim_memory() -> None:
    """Give freed heap back to the system, after an engine was closed (glibc only)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
