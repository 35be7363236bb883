"""Keep encoders from making themselves real-time.

SVT-AV1, started by root, puts the thread that opens it and all its own threads on SCHED_FIFO priority 99,
above everything else on the machine, and every process that the slot starts later inherits it. A neighbour's
decode loop would stand still. The right to do so, CAP_SYS_NICE, is put down while an encoder is open.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_CAP_SYS_NICE: Final = 23
_VERSION_3: Final = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Data(ctypes.Structure):
    _fields_ = [
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    ]


def _capabilities(change: int | None = None) -> int:
    """Low word of this thread's effective capabilities; with ``change`` they become that first."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = _Header(_VERSION_3, 0)
    data = (_Data * 2)()
    if libc.capget(ctypes.byref(header), ctypes.byref(data)) != 0:
        raise OSError(ctypes.get_errno(), "capget failed")
    if change is not None:
        data[0].effective = change
        header = _Header(_VERSION_3, 0)
        if libc.capset(ctypes.byref(header), ctypes.byref(data)) != 0:
            raise OSError(ctypes.get_errno(), "capset failed")
    return int(data[0].effective)


@contextmanager
def calm() -> Iterator[None]:
    """Inside, this thread and the threads that it starts cannot become real-time.

    Raises :class:`RuntimeError` when a thread of the process has done so all the same.
    """
    held = _capabilities()
    soft, hard = resource.getrlimit(resource.RLIMIT_RTPRIO)
    before = real_time_threads()
    _capabilities(held & ~(1 << _CAP_SYS_NICE))
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, hard))
    try:
        yield
        risen = real_time_threads() - before
        if risen:
            raise RuntimeError(f"{len(risen)} threads of an encoder made themselves real-time")
    finally:
        resource.setrlimit(resource.RLIMIT_RTPRIO, (soft, hard))
        _capabilities(held)


def real_time_threads() -> set[int]:
    """Threads of this process under a real-time policy."""
    found = set()
    for entry in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            policy = os.sched_getscheduler(int(entry.name))
            if policy & ~os.SCHED_RESET_ON_FORK in (os.SCHED_FIFO, os.SCHED_RR):
                found.add(int(entry.name))
    return found
