"""Children of `farm up` end with it, however it ends.

The parent names itself in ``FARM_PARENT_PID``. A child asks the kernel for SIGTERM at its parent's death
and then looks whether the parent died before that: no gap in between, and nothing runs between fork and exec.
"""

from __future__ import annotations

import ctypes
import os
import signal

VARIABLE = "FARM_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Make this process end with the one that ``FARM_PARENT_PID`` names; does nothing without it."""
    # taken out of the environment, so that our own children do not take it for theirs
    named = os.environ.pop(VARIABLE, None)
    if named is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if str(os.getppid()) != named:
        raise SystemExit(0)
