"""What the farm costs on a Mitsuba job: ``python -m tests.benchmarks.render_overhead [FRAMES [SAMPLES]]``.

The demo's turntable, without its film: 48 frames of 320x180 by a farm of its own (one slot; from submit to
the last frame verified and published), and by a plain Mitsuba loop in one process (from process start to the
last file written), with the same variant, threads, seeds and denoiser, and the CPU weight and priority of a
slot. Loop, farm, farm, loop, so that drift of the machine falls on both alike. The pictures are compared:
only the same pictures are the same work.

Dr.Jit keeps compiled kernels in the user's home, the farm for each scene on its node. Both begin with none,
so the first loop and the first job compile (seconds), the second ones do not. The slot has worked before, as
slots have, on another scene. The loops run beside the idle farm; what that took meanwhile is taken off.

Mitsuba's scalar renderer gives other noise with another number of threads (one thread against two: up to
160 of 255 levels in single pixels of this scene, the same picture to the eye). So both sides must use as
many, and the benchmark refuses to compare where they did not; then only the denoiser's rounding is left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from api.cli.demo.interrupts import Interrupts
from api.cli.demo.own_farm import OwnFarm
from farm.client import FarmClient
from farm.errors import FarmError, TaskFailed
from jobs.render import demo
from jobs.render.camera import Bounds, OrbitCamera, orbit_pose
from jobs.render.mitsuba.variants import choose
from jobs.render.spec import Spec
from tests.benchmarks.machine import Figure, judge
from tests.benchmarks.same_weight import weighed_like
from tests.benchmarks.timed_job import (
    by_the_farm,
    cpu_of_children,
    largest_difference,
    threads_of,
    wait_for,
)

BOUND = 0.05

LOOP = """
import json, os, sys
import drjit as dr, mitsuba as mi, numpy as np
job = json.loads(sys.argv[1])
mi.set_variant(job["variant"])
dr.set_thread_count(job["threads"])
import mitsuba_oidn
scene = mi.load_file(job["scene"], optimize=False)
sensor = mi.load_dict({
    "type": "perspective", "fov_axis": "x", "fov": job["fov"],
    "film": {"type": "hdrfilm", "width": job["width"], "height": job["height"], "pixel_format": "rgb",
             "component_format": "float32", "rfilter": {"type": "box"}},
    "sampler": {"type": "independent", "sample_count": job["samples"]},
})
aovs = "normal:sh_normal,albedo:albedo"
integrator = mi.load_dict({"type": "aov", "aovs": aovs, "img": scene.integrator()})
params = mi.traverse(sensor)
for number, matrix in job["frames"]:
    params["to_world"] = type(params["to_world"])(mi.ScalarTransform4f(np.array(matrix)))
    params.update()
    pixels = np.array(mi.render(scene, sensor=sensor, integrator=integrator, spp=job["samples"], seed=number))
    color, normal, albedo = (np.ascontiguousarray(pixels[..., i:i + 3]) for i in (0, 3, 6))
    clean = mitsuba_oidn.denoise(color, albedo=np.clip(albedo, 0, 1), normal=np.clip(normal, -1, 1), hdr=True)
    shown = np.maximum(np.asarray(clean), 0) * np.float32(2.0 ** job["exposure"])
    bitmap = mi.Bitmap(np.ascontiguousarray(shown, dtype=np.float32))
    bitmap.convert(component_format=mi.Struct.Type.UInt8, srgb_gamma=True).write(f"{job['to']}/{number}.png")
os._exit(0)
"""


def plain_loop(spec: Spec, folder: Path, threads: int, home: Path, weight: Sequence[str] = ()) -> float:
    """Seconds that the loop takes for all frames of ``spec``, on a machine of its own.

    Kernels are kept in ``home``; ``weight`` begins the command line.
    """
    proof = choose(spec, "cpu")
    camera = spec.resolved_camera
    assert isinstance(camera, OrbitCamera)
    frames: list[tuple[int, Any]] = []
    for number in spec.frame_range():
        pose = orbit_pose(camera, number, spec.frame_range(), Bounds((0, 0, 0), 1), spec.resolution)
        # Mitsuba's cameras look along +z with x to the left
        matrix = np.array(pose.camera_to_world()) @ np.diag([-1.0, 1.0, -1.0, 1.0])
        frames.append((number, matrix.tolist()))
    job = {
        "variant": proof.variant,
        "threads": threads,
        "scene": str(demo.assets()[spec.scene]),
        "width": spec.resolution[0],
        "height": spec.resolution[1],
        "fov": camera.fov,
        "samples": spec.samples,
        "exposure": spec.exposure,
        "frames": frames,
        "to": str(folder),
    }
    environment = {**os.environ, **dict(proof.env), "DRJIT_CACHE_DIR": str(home)}
    began, others = time.monotonic(), cpu_of_children()
    subprocess.run([*weight, sys.executable, "-c", LOOP, json.dumps(job)], check=True, env=environment)
    taken = cpu_of_children() - others
    return time.monotonic() - began - taken / threads


def work_before(farm: FarmClient) -> None:
    """A small job of another scene: the slot has then proven its variant and knows the engine."""
    name, path = next((name, path) for name, path in demo.assets().items() if name.endswith(".ply"))
    spec = {"scene": name, "frames": "1", "resolution": [32, 18], "samples": 1}
    wait_for(farm, farm.submit(name="before", kind="render", spec=spec, assets=farm.upload({name: path})).id)


def main(frames: int = 48, samples: int = 12) -> int:
    """Run the four measurements; 1 where the bound is missed."""
    wanted = demo.spec(frames=f"1-{frames}") | {"samples": samples}
    wanted.pop("film")
    spec = Spec.model_validate(wanted)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folders = {part: folder / part for part in ("loop", "farm")}
        for path in folders.values():
            path.mkdir()
        interrupts = Interrupts()
        threads = len(os.sched_getaffinity(0))
        home = folder / "kernels"
        home.mkdir()
        with interrupts, OwnFarm(folder / "own", interrupts) as own, FarmClient.of(own.credentials) as farm:
            assets = farm.upload(demo.assets())
            work_before(farm)

            def loop() -> float:
                (slot,) = farm.slots()
                assert slot.pid is not None
                with weighed_like(slot.pid) as weight:
                    return plain_loop(spec, folders["loop"], threads, home, weight)

            loops = [loop()]
            farms = [by_the_farm(farm, wanted, assets, folders["farm"])]
            # another seed: the child that the first job left with its scene is of no use to the second
            farms.append(by_the_farm(farm, wanted | {"seed": 1000}, assets, folder))
            used = {number for job in farm.jobs(limit=2) for number in threads_of(farm, job.id)}
            loops.append(loop())
        if used != {threads}:
            raise TaskFailed(
                f"the farm rendered with {used} threads, the loop with {threads}: not the same work"
            )
        difference = largest_difference(folders["loop"], folders["farm"], spec.frame_range())
    overhead = sum(farms) / sum(loops) - 1.0
    print(f"variant {choose(spec, 'cpu').variant}, {frames} frames of 320x180 at {samples} samples")
    return judge(
        [
            Figure("plain loop, first run (compiles)", loops[0], "s"),
            Figure("farm, first job (compiles)", farms[0], "s"),
            Figure("farm, second job", farms[1], "s"),
            Figure("plain loop, second run", loops[1], "s"),
            Figure("overhead of the farm (farm / loop - 1)", overhead, "", BOUND),
            Figure("largest difference of a pixel (8 bit)", float(difference), "", 1.0),
        ]
    )


if __name__ == "__main__":
    try:
        sys.exit(main(*(int(argument) for argument in sys.argv[1:3])))
    except FarmError as error:
        sys.exit(error.message)
