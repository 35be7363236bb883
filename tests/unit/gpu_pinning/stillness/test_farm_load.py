"""The farm's loads as the bench runs them: in small on a CPU where the real ones want a GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_pinning import procfs
from gpu_pinning.stillness import farm_load
from gpu_pinning.stillness.crew import FarmWorker, Work


def test_an_unknown_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="encode, render, gpu, denoise"):
        farm_load.make_unit("film")


def test_a_denoise_step_of_wan_shapes_goes_through_its_blocks_and_stays_finite() -> None:
    torch = pytest.importorskip("torch")
    from gpu_pinning.stillness import gpu_load

    unit = gpu_load.wan("cpu", layers=3, tokens=24, text=5, width=16, inner=32, heads=2, frames=1)
    states = []
    for _ in range(7):
        unit()
        states.append(unit.state())  # type: ignore[attr-defined]
    assert [at for _, at in states] == [1, 2, 0, 1, 2, 0, 1]
    assert all(x.shape == (24, 16) and bool(torch.isfinite(x).all()) for x, _ in states)
    assert not torch.equal(states[0][0], states[3][0])


def test_the_small_denoise_loop_gives_the_same_result_each_time() -> None:
    pytest.importorskip("torch")
    from gpu_pinning.stillness import gpu_load

    results = set()
    for _ in range(2):
        unit = gpu_load.denoise("cpu", tokens=16, width=32, heads=2)
        for _ in range(3):
            unit()
        results.add(unit.result())  # type: ignore[attr-defined]
    assert len(results) == 1


def test_training_steps_train() -> None:
    pytest.importorskip("torch")
    from gpu_pinning.stillness import gpu_load

    unit = gpu_load.train("cpu", rays=32, samples=8, grid=8, features=4)
    losses = []
    for _ in range(40):
        unit()
        losses.append(unit.loss())  # type: ignore[attr-defined]
    assert losses[-1] < 0.8 * losses[0]


def test_copies_have_sessions_and_stamps_of_their_own_and_end_with_the_first(tmp_path: Path) -> None:
    everyone = tuple(sorted(os.sched_getaffinity(0)))
    worker = FarmWorker(Work("encode", everyone, 1, copies=3), "loose", None, tmp_path)
    try:
        pids = worker.pids()
        assert len(pids) == 3 and len({os.getsid(pid) for pid in pids}) == 3
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids} == {os.getpriority(os.PRIO_PROCESS, 0)}
        assert {frozenset(os.sched_getaffinity(pid)) for pid in pids} == {frozenset(everyone)}
        assert all(len(reader) > 1 for reader in worker.readers) and len(worker.readers) == 3
        worker.run(False)
        deadline = time.monotonic() + 30
        while {seen.state for pid in pids if (seen := procfs.process(pid))} != {"T"}:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        worker.close()
    assert [pid for pid in pids if _lives(pid)] == []


def test_copies_do_not_outlive_a_first_one_that_is_killed(tmp_path: Path) -> None:
    root = Path(farm_load.__file__).resolve().parents[2]
    environment = {**os.environ, "STILLNESS_COPIES": "2", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    stamps = tmp_path / "a.stamps"
    first = subprocess.Popen(
        [sys.executable, "-m", "gpu_pinning.stillness.farm_load", "encode", str(stamps)],
        env=environment, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not Path(f"{stamps}.1").exists():
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    family = procfs.family(first.pid)
    assert len(family) == 2
    os.kill(first.pid, signal.SIGKILL)
    first.wait(10)
    while any(_lives(pid) for pid in family):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    seen = procfs.process(pid)
    return seen is not None and seen.state not in "ZX"


def test_stopped_loads_end_with_a_bench_that_is_killed(tmp_path: Path) -> None:
    """A bench that is cut off by SIGKILL cannot let its workers go, and stopped ones look at nothing."""
    script = (
        "import os, sys, time; from pathlib import Path\n"
        "from gpu_pinning.stillness.crew import FarmWorker, Work\n"
        "from gpu_pinning.stillness.sources import DecodeProcess\n"
        "cpus = tuple(os.sched_getaffinity(0)); folder = Path(sys.argv[1])\n"
        "worker = FarmWorker(Work('encode', cpus, 1, copies=2), 'w', None, folder); worker.run(False)\n"
        "decode = DecodeProcess('cpu', cpus, folder); decode.pause(True)\n"
        "print(*worker.pids(), *decode.pids(), flush=True); time.sleep(600)"
    )
    root = str(Path(farm_load.__file__).resolve().parents[2])
    bench = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": root}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert bench.stdout is not None
    pids = [int(word) for word in bench.stdout.readline().split()]
    assert len(pids) == 3 and all(_lives(pid) for pid in pids)
    bench.kill()
    bench.wait(10)
    bench.stdout.close()
    deadline = time.monotonic() + 30
    while any(_lives(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)
