"""What an attempt uses of the machine, read from /proc for the slot and all that is below it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from workers.keeper import descendants

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process, its living descendants, and the children that each of them has reaped."""
    ticks = 0
    for one in [pid, *descendants(pid)]:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{one}/stat").read_bytes().rpartition(b")")[2].split()
            # utime, stime, cutime, cstime: fields 14 to 17 of proc(5)
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICK


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
