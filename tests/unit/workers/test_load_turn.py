"""Loads on a node take turns, whoever dies, and wait while somebody holds the lock."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from workers.load_turn import LOCK_VARIABLE, load_turn

_LOADER = """
import sys, time
from workers.load_turn import load_turn
with load_turn(lambda: None):
    print("begin", time.monotonic(), flush=True)
    time.sleep(float(sys.argv[1]))
    print("end", time.monotonic(), flush=True)
"""


def loader(lock: Path, seconds: float) -> subprocess.Popen[str]:
    root = str(Path(__file__).resolve().parents[3])
    environment = {**os.environ, LOCK_VARIABLE: str(lock), "PYTHONPATH": root}
    return subprocess.Popen(
        [sys.executable, "-c", _LOADER, str(seconds)], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_two_loads_never_overlap(tmp_path: Path) -> None:
    spans = []
    for process in [loader(tmp_path / "lock", 0.2) for _ in range(3)]:
        out, _ = process.communicate(timeout=120)
        spans.append(tuple(float(line.split()[1]) for line in out.splitlines()))
    spans.sort()
    assert len(spans) == 3
    assert all(first[1] <= second[0] for first, second in pairwise(spans))


def test_a_loader_that_dies_gives_its_turn_back(tmp_path: Path) -> None:
    first = loader(tmp_path / "lock", 600)
    assert first.stdout is not None and first.stdout.readline().startswith("begin")
    second = loader(tmp_path / "lock", 0)
    first.kill()
    first.wait()
    out, _ = second.communicate(timeout=120)
    assert out.startswith("begin")


def test_who_waits_is_asked_again_and_again_and_may_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock"
    monkeypatch.setenv(LOCK_VARIABLE, str(lock))
    asked = 0

    def wait() -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise InterruptedError

    fd = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(InterruptedError), load_turn(wait):
        pass
    assert asked == 3
    os.close(fd)
    with load_turn(wait), load_turn(wait):
        assert asked == 3, "nested turns are one"


def test_without_neighbours_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOCK_VARIABLE, raising=False)
    began = time.monotonic()
    with load_turn(lambda: pytest.fail("waited")):
        pass
    assert time.monotonic() - began < 5
