"""Views of a field by one slot and by two: ``python -m tests.benchmarks.nerf_slots [VIEWS] [CORES]``.

A farm of its own with one CPU slot, then with two, each with CORES (1) cores of its own; a small field is
trained, and VIEWS (96) views of 160x120 are rendered in chunks of 4. What counts is the time from the first
view begun to the last one published. One, two, two, one, so that drift of the machine falls on both alike.
Bound: two slots render at least 1.8 times as many views a second. Exit codes: 0 it was kept, 1 not, 3 the
machine has too few cores for two slots and the farm itself.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from api.cli.demo.interrupts import Interrupts
from api.cli.demo.own_farm import OwnFarm
from farm.client import FarmClient
from tests.benchmarks.machine import Figure, judge
from tests.benchmarks.timed_job import wait_for
from tests.unit.jobs.nerf.scenes import assets_of, write_set

NOT_RUN = 3
BOUND = 1.8


def spec_of(views: int) -> dict[str, Any]:
    """A job whose views take far longer than its training."""
    return {
        "source": "set/transforms.json", "path": {"type": "orbit"}, "frames": f"1-{views}",
        "resolution": [160, 120], "chunk_frames": 4, "max_retries": 0,
        "train": {"iterations": 60, "resolution": 48, "samples": 64, "ray_samples": 8000, "sh_degree": 1},
    }  # fmt: skip


def measure(folder: Path, slots: int, cores: int, views: int, files: dict[str, Path]) -> float:
    """Views a second with so many slots."""
    folder.mkdir()
    config = folder / "farm.toml"
    config.write_text(
        f'[[slots]]\nname = "nerf"\npools = ["nerf"]\ncount = {slots}\ncores = {cores}\nthreads = {cores}\n',
        encoding="utf-8",
    )
    os.environ["FARM_CONFIG"] = str(config)
    interrupts = Interrupts()
    try:
        with (
            interrupts, OwnFarm(folder / "own", interrupts) as own, FarmClient.of(own.credentials) as farm,
        ):  # fmt: skip
            job = farm.submit(name="views", kind="nerf", spec=spec_of(views), assets=farm.upload(files))
            wait_for(farm, job.id)
            (step,) = (step.id for step in farm.steps(job.id) if step.name == "views")
            tasks = {task.id for task in farm.tasks(job.id) if task.step_id == step}
            turns = [turn for turn in farm.attempts(job.id) if turn.task_id in tasks]
            began = min(turn.started_at for turn in turns if turn.started_at is not None)
            ended = max(turn.ended_at for turn in turns if turn.ended_at is not None)
            found = len(farm.slots())
    finally:
        os.environ.pop("FARM_CONFIG", None)
    if found != slots:
        raise RuntimeError(f"the farm has {found} slots, not {slots}")
    rate = views / (ended - began).total_seconds()
    print(f"{slots} slots of {cores} cores: {rate:.2f} views/s", flush=True)
    return rate


def main(views: str = "96", cores: str = "1") -> int:
    """Measure; 0 where the bound was kept."""
    count, each = int(views), int(cores)
    have = len(os.sched_getaffinity(0))
    if have < 2 * each:
        print(f"not run: two slots of {each} cores need {2 * each}, and {have} are here")
        return NOT_RUN
    with tempfile.TemporaryDirectory(prefix="stillframe-slots-") as name:
        folder = Path(name)
        write_set(folder / "set", 8)
        files = assets_of(folder / "set")
        rates: dict[int, list[float]] = {1: [], 2: []}
        for index, slots in enumerate((1, 2, 2, 1)):
            rates[slots].append(measure(folder / f"run{index}", slots, each, count, files))
    ratio = sum(rates[2]) / sum(rates[1])
    return judge([Figure("views by two slots over one", ratio, "x", BOUND, True)])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
