"""Cycles on the GPU of a slot: ``python -m tests.benchmarks.blender_gpu [cuda|optix [SCENE]]``.

Renders frames of RobotExpressive.blend on one NVIDIA GPU, as a slot that owns it would, and asks NVML
meanwhile which GPUs have work: the slot's own must, by UUID, and no other may get any. Exit codes: 0 it held,
1 it did not, 3 it could not be run here, with the reason.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from farm.errors import FarmError
from jobs.render.blender.installation import install
from jobs.render.engine import create
from tests.benchmarks.blender_overhead import REPOSITORY, SCENES
from tests.benchmarks.machine import hardware
from tests.unit.jobs.local_host import LocalHost

NOT_RUN = 3


@contextmanager
def nvml() -> Iterator[Any]:
    """NVML. Raises :class:`SystemExit` with code 3 where there is no NVIDIA GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        if pynvml.nvmlDeviceGetCount() == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    except Exception as error:
        print(f"not run: this machine has no NVIDIA GPU that NVML sees ({error})")
        raise SystemExit(NOT_RUN) from None
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def gpus(lib: Any) -> dict[str, Any]:
    """Handles of all GPUs by UUID."""
    handles = [lib.nvmlDeviceGetHandleByIndex(i) for i in range(lib.nvmlDeviceGetCount())]
    return {str(lib.nvmlDeviceGetUUID(handle)): handle for handle in handles}


def main(device: str = "cuda", name: str = "RobotExpressive.blend") -> int:
    """Render on the first GPU; whether NVML saw it there and nowhere else."""
    with nvml() as lib:
        scene = SCENES / name
        if not scene.is_file():
            print(f"not run: there is no {scene}")
            return NOT_RUN
        os.environ.setdefault("FARM_BLENDER_HOME", str(REPOSITORY / ".blender"))
        try:
            install()
        except FarmError as error:
            print(f"not run: {error.message}")
            return NOT_RUN
        handles = gpus(lib)
        uuid, handle = next(iter(handles.items()))
        pci = str(lib.nvmlDeviceGetPciInfo(handle).busId).lower()
        before = {each: lib.nvmlDeviceGetMemoryInfo(one).used for each, one in handles.items()}
        peak = dict(before)
        seen: set[str] = set()

        def look(_: LocalHost) -> None:
            for each, one in handles.items():
                peak[each] = max(peak[each], lib.nvmlDeviceGetMemoryInfo(one).used)
                if lib.nvmlDeviceGetUtilizationRates(one).gpu > 20:
                    seen.add(each)

        os.environ |= {"CUDA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        with tempfile.TemporaryDirectory() as folder:
            host = LocalHost(Path(folder), {scene.name: scene}, on_check=look)
            spec = {
                "scene": scene.name,
                "frames": "1-4",
                "samples": 2048,
                "resolution": [1280, 720],
                "device": device,
                "blender": {"camera": "auto", "engine": "cycles", "allow_missing": True, "denoiser": "none"},
            }
            parsed, plan = host.plan("render", spec)
            engine = create()
            engine.open(host)
            try:
                for planned in plan.steps:
                    step = host.expanded("render", parsed, planned) if planned.deferred else planned
                    for task in host.tasks(parsed, step):
                        owned = {"kind": "cuda", "uuid": uuid, "pci": [pci], "threads": 8}
                        engine.run(dataclasses.replace(task, device=owned), host)
            except FarmError as error:
                print(f"{device} was refused: {error.message}")
                return 1
            finally:
                engine.close()
            frames = [frame for (step_name, _), frame in host.published.items() if step_name == "render"]
            spread = float(np.asarray(Image.open(frames[0].files["beauty.png"])).std())
            report = host.results["render"][-1]["device"]
    strangers = [each for each in handles if each != uuid and peak[each] - before[each] > 2**26]
    grown = (peak[uuid] - before[uuid]) / 2**20
    print(hardware())
    print(f"slot's GPU {uuid} at {pci}; Cycles used {report['devices']} through {device}")
    print(f"its memory grew by {grown:.0f} MiB; busy GPUs by NVML: {sorted(seen) or 'none'}")
    seconds = [round(frame.duration_s, 2) for frame in frames]
    print(f"{len(frames)} frames, {seconds} s; spread of a picture {spread:.1f}")
    kept = grown > 64 and uuid in seen and not strangers and len(frames) == 4 and spread > 1
    print("ok" if kept else f"FAILED (other GPUs that got memory: {strangers})")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
