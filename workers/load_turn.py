"""Models load one after another on a node with neighbours, and not at all while the guard holds new work.

A load reads gigabytes and uses every core it has: several at once are what a neighbour feels most. The turn
is a lock on a file, which the kernel gives back when a slot dies.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOCK_VARIABLE = "STILLFRAME_LOAD_LOCK"
"""Environment variable with the lock's file; without it nobody waits."""
_POLL_S = 0.02
_depth = 0


@contextmanager
def load_turn(wait: Callable[[], None]) -> Iterator[None]:
    """Have the node's turn to load; ``wait`` is called again and again meanwhile, and may raise.

    Used on one thread of a process, nested at will.
    """
    global _depth
    path = os.environ.get(LOCK_VARIABLE)
    if path is None or _depth:
        _depth += 1
        try:
            yield
        finally:
            _depth -= 1
        return
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                wait()
                time.sleep(_POLL_S)
        _depth += 1
        try:
            yield
        finally:
            _depth -= 1
    finally:
        os.close(fd)
