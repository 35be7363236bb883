"""What an attempt uses of the machine, read from /proc for the slot and all that is below it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from workers.keeper import descendants

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class CpuTime:
    """CPU seconds that a process and all below it spend from now on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = _ticks(pid)

    def spent(self) -> float:
        """Seconds since the beginning.

        A child that was alive at the beginning and has gone since brought its whole life's time to whoever
        reaped it: that is taken off where it came to us, and never makes a figure negative where it did not.
        """
        now, before = _ticks(self._pid), self._before
        own = sum(mine - before.get(one, (0, 0))[0] for one, (mine, _) in now.items())
        reaped = sum(theirs - before.get(one, (0, 0))[1] for one, (_, theirs) in now.items())
        gone = sum(sum(ticks) for one, ticks in before.items() if one not in now)
        return (own + max(0, reaped - gone)) / _TICK


def _ticks(pid: int) -> dict[tuple[int, bytes], tuple[int, int]]:
    """Ticks of each process of a tree, by id and time of start: its own, and those of what it has reaped."""
    found = {}
    for one in [pid, *descendants(pid)]:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{one}/stat").read_bytes().rpartition(b")")[2].split()
            # utime, stime, cutime, cstime, starttime: fields 14 to 17 and 22 of proc(5)
            user, system, their_user, their_system = map(int, fields[11:15])
            found[one, fields[19]] = (user + system, their_user + their_system)
    return found


def tree_rss(pid: int) -> int:
    """Resident bytes of a process and its descendants just now; shared pages count once per process."""
    pages = 0
    for one in [pid, *descendants(pid)]:
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages += int(Path(f"/proc/{one}/statm").read_bytes().split()[1])
    return pages * _PAGE


class PeakMemory:
    """The most memory that an attempt had: the slot's own high-water mark, and samples of the whole tree."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._sampled = 0

    def restart(self) -> None:
        """Forget what earlier attempts had."""
        self._sampled = 0
        with contextlib.suppress(OSError):
            Path(f"/proc/{self._pid}/clear_refs").write_bytes(b"5")

    def sample(self) -> None:
        """Look at the tree; the beat thread does so once a beat."""
        self._sampled = max(self._sampled, tree_rss(self._pid))

    def peak(self) -> int:
        """Bytes."""
        own = 0
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
            own = int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
        return max(own, self._sampled)
