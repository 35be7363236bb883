"""The keeper of one slot: a tiny process between agent and slot that leaves nothing alive behind it.

Run as a file by ``python -I -S`` with the standard library alone: it costs some 10 ms and 8 MB.

    agent ── keeper ── slot ── engine's children ── theirs
               └─ (orphans of all of these)

- It is the *subreaper* of everything below: a grandchild whose parent ends, even one that left the session
  and cleared its environment, becomes a child of the keeper, never of init.
- It starts the slot in a session of its own with SIGKILL as parent-death signal. What it starts is first
  the launcher of ``gpu_pinning``, which puts itself behind the slot's fence (cgroups, affinity, memory
  policy, device files) and then becomes the slot: whatever descends from the slot is behind the fence too,
  and the keeper is not.
- When the slot ends, or on SIGTERM (which is also its own parent-death signal, so an agent's death comes to
  the same), it kills all that is below it, says how the slot ended on the status pipe, and ends.
- SIGUSR1 is passed to the slot as SIGTERM. The agent signals the keeper alone, whose id cannot be taken by
  another process while the agent has not reaped it.
- A *gentle* keeper (of an MPS slot, whose SIGKILL would take every client of that GPU down) never kills: it
  asks what is below it to end, once a second, and waits for as long as that takes.

Status pipe: ``pid N``, then ``exit CODE`` or ``signal NUMBER``, then ``left N`` if N processes could not be
killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

KEEPER_VARIABLE = "STILLFRAME_KEEPER"
"""Environment variable that tells a slot the process id of its keeper."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_GIVE_UP_S = 5.0
_KERNEL_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # noqa: PTH110
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}


def prctl(option: int, value: int) -> None:
    """Call prctl(2); raises :class:`OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def children(pid: int) -> list[int]:
    """Process ids of the children of a process, zombies among them; empty when it is gone."""
    found: list[int] = []
    if not _KERNEL_LISTS_CHILDREN:
        return [child for child, parent in _parents().items() if parent == pid]
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  pathlib is not imported: it takes 10 ms
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found += [int(word) for word in file.read().split()]
        except OSError:
            continue
    return found


def _parents() -> dict[int, int]:
    """Parent of every process, for kernels without CONFIG_PROC_CHILDREN."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
    return found


def descendants(pid: int) -> list[int]:
    """Everything below a process, parents before children."""
    found: list[int] = []
    queue = children(pid)
    while queue:
        one = queue.pop(0)
        found.append(one)
        queue += children(one)
    return found


class Keeper:
    """One slot's keeper; ``order`` is what the agent said on the command line."""

    def __init__(self, order: dict[str, object]) -> None:
        self._order = order
        self._status_fd = int(str(order["status_fd"]))
        self._gentle = bool(order.get("gentle"))
        self._slot = 0
        self._ended: str | None = None

    def run(self) -> int:
        """Start the slot and stay until nothing is left below."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != self._order["agent"]:
            return 1
        self._slot = os.fork()
        if self._slot == 0:
            self._become_slot()
        self._say(f"pid {self._slot}")
        while self._ended is None:
            number = signal.sigwaitinfo(_SIGNALS).si_signo
            if number == signal.SIGCHLD:
                self._reap()
            elif number == signal.SIGUSR1:
                # not reaped yet, so the id is still the slot's
                os.kill(self._slot, signal.SIGTERM)
            elif number == signal.SIGTERM:
                break
        left = self._ask_all() if self._gentle else self._kill_all()
        self._say(self._ended or f"signal {int(signal.SIGKILL)}")
        if left:
            self._say(f"left {left}")
        return 0

    def _become_slot(self) -> None:
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM if self._gentle else signal.SIGKILL)
            if os.getppid() == 1:
                os._exit(1)
            os.close(self._status_fd)
            os.environ[KEEPER_VARIABLE] = str(os.getppid())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            argv = [str(word) for word in self._order["argv"]]  # type: ignore[attr-defined]
            os.execv(argv[0], argv)
        except BaseException as error:  # noqa: BLE001  a forked child must never run on as the keeper
            os.write(2, f"the slot could not be started: {error}\n".encode())
        os._exit(127)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._slot:
                code = os.waitstatus_to_exitcode(status)
                self._ended = f"signal {-code}" if code < 0 else f"exit {code}"

    def _kill_all(self) -> int:
        """Kill everything below until nothing is; the number of processes that would not die."""
        deadline = time.monotonic() + _GIVE_UP_S
        while True:
            below = descendants(os.getpid())
            for pid in below:
                try:
                    os.kill(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue
            self._reap()
            below = children(os.getpid())
            if not below or time.monotonic() > deadline:
                return len(below)
            signal.sigtimedwait({signal.SIGCHLD}, 0.02)

    def _ask_all(self) -> int:
        """Ask everything below to end until nothing is left; a frozen process is let go first."""
        while True:
            for pid in descendants(os.getpid()):
                for number in (signal.SIGTERM, signal.SIGCONT):
                    try:
                        os.kill(pid, number)
                    except (ProcessLookupError, PermissionError):
                        break
            self._reap()
            if not children(os.getpid()):
                return 0
            signal.sigtimedwait({signal.SIGCHLD}, 1.0)
            self._reap()

    def _say(self, line: str) -> None:
        try:
            os.write(self._status_fd, f"{line}\n".encode())
        except OSError:
            # the agent is gone; the work here is the same
            return


if __name__ == "__main__":
    sys.exit(Keeper(json.loads(sys.argv[1])).run())
