"""What makes tensors fast on a CPU: memory that stays, and no numbers too small to matter."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_pages() -> bool:
    """Serve large arrays from the heap and keep freed ones; whether the C library took it (glibc does).

    Without this every temporary array over 32 MB is mapped and faulted in anew: a fifth of the time of a
    training on a CPU went into the kernel.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 1 << 30)) and bool(mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))


@contextmanager
def tiny_flushed() -> Iterator[None]:
    """Treat numbers under 1e-38 as zero: squares of small gradients are, and a CPU takes 100 times as long.

    Only as long as it lasts: the slot's next task may be of a kind whose bits it would change.
    """
    import torch

    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
