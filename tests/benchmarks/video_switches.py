"""Memory over fifty switches of models: ``python -m tests.benchmarks.video_switches``.

Two models that do not fit into the budget together, each made 16 MiB heavier, in turn; on a GPU the memory
that torch has allocated there is judged as well. One model that stayed would be seen at once.
"""

from __future__ import annotations

import contextlib
import sys

import psutil
import torch

from jobs.video import payload, pipelines
from jobs.video.payload import Generation
from jobs.video.pipelines import Loaded
from jobs.video.residency import Residency
from tests.benchmarks.machine import Figure, judge
from tests.unit.jobs.video.making import spec, step_of

MIB = 2**20
SWITCHES = 50
HEAVIER_MIB = 16


def load(wanted: Generation) -> Loaded:
    """A model, with a ballast that shows when it stays."""
    loaded = pipelines.load(wanted)
    ballast = torch.ones(HEAVIER_MIB * MIB // 4, device=loaded.device)
    loaded.pipeline.transformer.register_buffer("ballast", ballast)
    return loaded


def main() -> int:
    pipelines.quiet_libraries()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    residency = Residency(device_budget=1, host_budget=1, load=load)
    models = [
        payload.read_step(step_of(spec(name)).payload).model_copy(update={"device": device})
        for name in ("wan", "cogvideox")
    ]
    host: list[float] = []
    gpu: list[float] = []
    for switch in range(SWITCHES):
        residency.get(models[switch % 2], contextlib.nullcontext)
        host.append(psutil.Process().memory_info().rss / MIB)
        gpu.append(torch.cuda.memory_allocated() / MIB if device == "cuda" else 0.0)
    residency.clear()
    print(
        f"{SWITCHES} switches on {device}: {host[4]:.0f} MiB after the fifth, {host[-1]:.0f} MiB at the end"
    )
    figures = [
        Figure("host memory over its fifth switch, at most", max(host[5:]) - host[4], "MiB", HEAVIER_MIB)
    ]
    if device == "cuda":
        figures.append(
            Figure("GPU memory over its fifth switch, at most", max(gpu[5:]) - gpu[4], "MiB", HEAVIER_MIB)
        )
    return judge(figures)


if __name__ == "__main__":
    sys.exit(main())
