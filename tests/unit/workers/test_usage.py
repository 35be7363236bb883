"""CPU time of an attempt: what was spent meanwhile, whatever becomes of the children."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from workers.usage import CpuTime

_BURN = "import time\nend = time.process_time() + {s}\nwhile time.process_time() < end: pass\n"


def _burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_own_work_and_that_of_a_reaped_child_count() -> None:
    cpu = CpuTime(os.getpid())
    _burn(0.2)
    subprocess.run([sys.executable, "-I", "-S", "-c", _BURN.format(s=0.2)], check=True)
    assert 0.35 <= cpu.spent() <= 0.7


def test_a_warm_child_that_ends_meanwhile_hides_no_work() -> None:
    code = _BURN.format(s=0.5) + "print(flush=True)\ntime.sleep(60)"
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    cpu = CpuTime(os.getpid())
    child.kill()
    _burn(0.2)
    # its half second was spent before: neither counted here, whether it is reaped or not
    assert 0.15 <= cpu.spent() <= 0.45
    child.wait()
    assert 0.15 <= cpu.spent() <= 0.45
    child.stdout.close()


def test_an_attempt_is_charged_for_a_warm_child_only_from_its_own_beginning() -> None:
    code = (
        _BURN.format(s=0.3)
        + "print(flush=True)\ninput()\n"
        + _BURN.format(s=0.2)
        + "print(flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        cpu = CpuTime(os.getpid())
        child.stdin.write(b"\n")
        child.stdin.flush()
        # process_time goes on from where it was: the second loop has its end behind it by 0.2 s more
        child.stdout.readline()
        spent = cpu.spent()
        child.kill()
    assert spent == pytest.approx(0.2, abs=0.1)
