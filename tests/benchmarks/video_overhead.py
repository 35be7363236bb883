"""What the farm costs in a denoise step: ``python -m tests.benchmarks.video_overhead``.

A tiny pipeline on a CPU, in one process: called plainly, and through the farm's loop with a real control
file, progress and previews (checkpoints apart: see ``video_gpu``). Rounds are interleaved, plain, farm, farm,
plain; the median of their differences is judged, in CPU time of the whole process (its preview thread too),
which other processes of the machine do not change. Wall time is printed beside it. Both must give the same
latents.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch

from farm.records import ClaimedTask
from jobs.engine import Host
from jobs.video import calls, payload, pipelines, preview
from jobs.video.engine import VideoEngine
from jobs.video.loop import Loop
from tests.benchmarks.machine import Figure, judge
from tests.unit.jobs.video.making import host as video_host
from tests.unit.jobs.video.making import spec, step_of, task_of
from workers.control import AgentControl, SlotControl
from workers.holding import Obedience
from workers.phases import PhaseClock

STEPS = 150
ROUNDS = 5
MOST_MS = 0.3


class ControlledHost:
    """The parts of a slot's host that the loop touches: control word, progress, previews to a file."""

    def __init__(self, folder: Path) -> None:
        AgentControl.create(folder / "control")
        self._control = SlotControl(folder / "control")
        self._control.begin(7)
        values: dict[str, Any] = {"serial": 7, "timeout_s": None, "no_progress_s": 60.0}
        task = cast(ClaimedTask, type("Task", (), values)())
        self.check = Obedience(self._control, task, PhaseClock()).check
        self.scratch = folder
        self.previews = 0
        self.saves: list[int] = []

    def progress(self, fraction: float, note: str = "") -> None:
        """As the slot's host does it."""
        self._control.progressed(fraction)
        self._control.note(note)

    def preview(self, png: bytes) -> None:
        """Written as the slot's host does it."""
        self.previews += 1
        path = self.scratch / "preview.png"
        path.with_suffix(".part").write_bytes(png)
        path.with_suffix(".part").replace(path)

    def save(self, path: Path) -> None:
        """Take a checkpoint away."""
        self.saves.append(path.stat().st_size)
        path.unlink()


def clocks() -> tuple[float, float]:
    """Wall and CPU time of this process, in seconds."""
    return time.perf_counter(), time.process_time()


def since(started: tuple[float, float]) -> tuple[float, float]:
    """Seconds of both clocks since then."""
    now = clocks()
    return now[0] - started[0], now[1] - started[1]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """So that what is measured is work, not threads waiting for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def main() -> int:
    given = spec("wan", steps=STEPS, checkpoint_every=1000, guidance=5.0)
    generation = payload.read_step(step_of(given).payload)
    loaded = pipelines.load(generation)
    denoisers = loaded.denoisers(generation)
    projection = preview.fit(loaded.pipeline.vae)
    assert projection is not None
    with tempfile.TemporaryDirectory() as folder, one_thread():
        host = ControlledHost(Path(folder))

        def run(farm: bool) -> tuple[float, float, Any]:
            view = loaded.view(generation)
            generator = torch.Generator().manual_seed(1)
            arguments = calls.arguments(view, generation, generator, {}) | {"output_type": "latent"}
            if not farm:
                with torch.no_grad():
                    started = clocks()
                    latents = view(**arguments).frames
                    return *since(started), latents
            previews = preview.Previews(projection, generation, host.preview)
            loop = Loop(cast(Host, host), generation, view, denoisers, loaded.device, {}, previews)
            started = clocks()
            latents = loop.call(arguments, generator)
            previews.close()
            return *since(started), latents

        run(False), run(True)
        differences: dict[int, list[float]] = {0: [], 1: []}
        plain_times = []
        for _ in range(ROUNDS):
            rounds = [run(farm) for farm in (False, True, True, False)]
            assert all(torch.equal(latents, rounds[0][2]) for _, _, latents in rounds)
            for clock in (0, 1):
                plain, farm = (float(rounds[a][clock]) + float(rounds[b][clock]) for a, b in ((0, 3), (1, 2)))
                differences[clock].append((farm - plain) / (2 * STEPS) * 1e3)
            plain_times.append((rounds[0][1] + rounds[3][1]) / (2 * STEPS) * 1e3)
    wall, most = (statistics.median(differences[clock]) for clock in (0, 1))
    print(
        f"a plain step takes {statistics.median(plain_times):.2f} ms of CPU; control word, progress and "
        f"{host.previews} previews add {most:+.3f} ms of CPU (pairs {min(differences[1]):+.3f} to "
        f"{max(differences[1]):+.3f}), {wall:+.3f} ms by the wall clock"
    )
    figures = [Figure("farm overhead in a denoise step, CPU time", most, "ms", MOST_MS), warm_start()]
    return judge(figures)


def warm_start() -> Figure:
    """From the engine's call to its first pass where the model is loaded and the prompt known."""
    engine = VideoEngine()
    try:
        with tempfile.TemporaryDirectory() as folder:
            engine.open(at := video_host(Path(folder)))
            for seed in (1, 2):
                given = spec("wan", seeds=[seed])
                engine.run(task_of(at, given), at)
            return Figure(
                "warm start: a task to its first pass", at.results["seed-2"][-1]["to_first_pass_s"], "s", 1.0
            )
    finally:
        engine.close()


if __name__ == "__main__":
    sys.exit(main())
