"""Asks a program one short question about this machine; one that was ended or hangs has not answered."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence

from gpu_pinning.errors import TopologyError

_TRIES = 2


def ask(argv: Sequence[str], seconds: float) -> str:
    """What ``argv`` prints, stripped, whatever its exit code; asked twice at most.

    A kernel filter that forbids what is tried ends the program with SIGSYS: that is an answer, ``""``. Raises
    TopologyError where it printed nothing, was ended by another signal, hung or could not be started: nothing
    may be concluded from that.
    """
    why = ""
    for _ in range(_TRIES):
        try:
            done = subprocess.run(list(argv), capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            why = f"no answer within {seconds:g} s"
        except OSError as error:
            why = error.strerror or str(error)
        else:
            if done.returncode == -signal.SIGSYS:
                return ""
            if done.returncode >= 0 and (answer := done.stdout.strip()):
                return answer
            why = f"killed by signal {-done.returncode}" if done.returncode < 0 else "it printed nothing"
    raise TopologyError(f"{' '.join(argv)}: {why}")
