"""What the farm costs on a Blender job.

``python -m tests.benchmarks.blender_overhead [SCENE [FRAMES [ROUNDS]]]``

Frames of RobotExpressive.blend (camera auto, Cycles on the CPU, 8 samples, 320x180) by a farm of its own with
one slot, from submit to the last frame verified and published, preflight and canary included; and by a plain
``bpy`` loop over the same frames, from process start to the last file written, with the same threads and the
slot's own weight in the kernel's scheduler. Rounds of one each, in turned order, and the median of their
ratios: other work on the machine falls on both alike, but a slot weighs little beside it, so that a loaded
machine shows noise. The pictures are compared: only the same pictures are the same work. Before that the
preflight of every .blend there, timed once its child is up.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from api.cli.demo.interrupts import Interrupts
from api.cli.demo.own_farm import OwnFarm
from farm.client import FarmClient
from farm.errors import FarmError, InvalidInput, TaskFailed
from farm.frame_range import FrameRange
from jobs.render.blender.installation import install
from tests.benchmarks.machine import Figure, judge
from tests.benchmarks.same_weight import weighed_like
from tests.benchmarks.timed_job import DEADLINE_S, by_the_farm, largest_difference

REPOSITORY = Path(__file__).resolve().parents[2]
SCENES = REPOSITORY.parent / "shared" / "real" / "blend"
BOUND = 0.10
PREFLIGHT_BOUND_S = 3.0

LOOP = """
import json, os, sys
import bpy
sys.path.insert(0, sys.argv[2])
from program.cameras import add_auto_camera
job = json.loads(sys.argv[1])
bpy.ops.wm.open_mainfile(filepath=job["scene"], load_ui=False, use_scripts=False)
scene = bpy.context.scene
render = scene.render
render.engine = "CYCLES"
scene.cycles.device = "CPU"
scene.cycles.samples = job["samples"]
scene.cycles.use_adaptive_sampling = False
render.resolution_x, render.resolution_y = job["resolution"]
render.resolution_percentage = 100
render.threads_mode, render.threads = "FIXED", job["threads"]
frames = job["frames"]
middle = frames[len(frames) // 2]
add_auto_camera(bpy, scene, scene.view_layers[0], sorted({frames[0], middle, frames[-1]}))
settings = render.image_settings
settings.file_format, settings.color_mode, settings.color_depth = "PNG", "RGB", "8"
render.use_file_extension = False
for number in frames:
    scene.frame_set(number)
    render.filepath = f"{job['to']}/{number}.png"
    bpy.ops.render.render(write_still=True)
os._exit(0)
"""


def plain_loop(
    scene: Path, spec: dict[str, Any], frames: list[int], folder: Path, weight: Sequence[str] = ()
) -> float:
    """Seconds that the loop takes for all frames; ``weight`` begins its command line."""
    import jobs.render.blender as package

    python = install(say=lambda text: None).command[0]
    job = {
        "scene": str(scene),
        "samples": spec["samples"],
        "resolution": spec["resolution"],
        "threads": len(os.sched_getaffinity(0)),
        "frames": frames,
        "to": str(folder),
    }
    program = str(Path(package.__file__).parent)
    began = time.monotonic()
    subprocess.run(
        [*weight, python, "-I", "-c", LOOP, json.dumps(job), program],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.monotonic() - began


def preflights(farm: FarmClient, folder: Path) -> dict[str, float]:
    """Seconds that each file's preflight took once its child was up: opening, looking through, setting up."""
    took = {}
    for scene in sorted(folder.glob("*.blend")):
        spec = {"scene": scene.name, "samples": 1, "frames": "1"}
        job = farm.submit(name=scene.stem, kind="render", spec=spec, assets=farm.upload({scene.name: scene}))
        began = time.monotonic()
        while True:
            (task,) = [task for task in farm.tasks(job.id) if task.step == "preflight"]
            if task.state in ("done", "failed"):
                break
            if time.monotonic() - began > DEADLINE_S:
                raise TaskFailed(f"the preflight of {scene.name} does not end")
            time.sleep(0.05)
        if task.result is None:
            raise TaskFailed(f"the preflight of {scene.name} found nothing: {task.error}")
        took[scene.name] = float(task.result["device"]["open_s"])
        if farm.job(job.id).state not in ("done", "failed"):
            farm.cancel(job.id)
    return took


def main(name: str = "RobotExpressive.blend", count: int = 24, rounds: int = 6) -> int:
    """Run the measurements; 1 where a bound is missed."""
    scene = SCENES / name
    if not scene.is_file():
        raise InvalidInput(
            f"there is no {scene}: this benchmark needs the shared scenes beside the repository"
        )
    os.environ.setdefault("FARM_BLENDER_HOME", str(REPOSITORY / ".blender"))
    install()
    frames = list(range(1, count + 1))
    spec: dict[str, Any] = {
        "scene": scene.name,
        "frames": f"1-{count}",
        "samples": 8,
        "resolution": [320, 180],
        "blender": {"camera": "auto", "engine": "cycles", "allow_missing": True},
    }
    loops: list[float] = []
    farms: list[float] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folders = {part: folder / part for part in ("loop", "farm")}
        for path in folders.values():
            path.mkdir()
        interrupts = Interrupts()
        with interrupts, OwnFarm(folder / "own", interrupts) as own, FarmClient.of(own.credentials) as farm:
            # first, so that the slot has worked before, as slots have; the scene is not what it holds then
            looks = preflights(farm, SCENES)
            assets = farm.upload({scene.name: scene})

            def by_loop() -> None:
                (slot,) = farm.slots()
                assert slot.pid is not None
                with weighed_like(slot.pid) as weight:
                    loops.append(plain_loop(scene, spec, frames, folders["loop"], weight))

            def by_farm() -> None:
                # another title of the same work: nothing that a job left warm may help the next
                title = {"memory_limit": 2**34 + len(farms)}
                farms.append(by_the_farm(farm, spec | title, assets, folders["farm"]))

            for index in range(rounds):
                for run in (by_loop, by_farm) if index % 2 == 0 else (by_farm, by_loop):
                    run()
        difference = largest_difference(folders["loop"], folders["farm"], FrameRange.of(frames))
    ratios = [farm / loop for loop, farm in zip(loops, farms, strict=True)]
    print(f"{scene.name}, {count} frames of 320x180 at 8 samples, {rounds} rounds of one each")
    print("loop:", " ".join(f"{seconds:.2f}" for seconds in loops), "s")
    print("farm:", " ".join(f"{seconds:.2f}" for seconds in farms), "s")
    return judge(
        [
            Figure("plain bpy loop, median", statistics.median(loops), "s"),
            Figure("farm, median", statistics.median(farms), "s"),
            Figure(
                "overhead of the farm (median of farm / loop - 1)", statistics.median(ratios) - 1, "", BOUND
            ),
            Figure("largest difference of a pixel (8 bit)", float(difference), "", 0.0),
            *(
                Figure(f"preflight of {file}", seconds, "s", PREFLIGHT_BOUND_S)
                for file, seconds in looks.items()
            ),
        ]
    )


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:2], *(int(argument) for argument in sys.argv[2:4])))
    except FarmError as error:
        sys.exit(error.message)
