"""Mitsuba as the renderer: its child, its variant, its cameras."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from farm.frame_range import FrameRange
from farm.settings import settings
from jobs.engine import Host, TaskContext
from jobs.render.bounds import Limits
from jobs.render.child_process import Child
from jobs.render.driver import links, memory_limit, owner, process_limit
from jobs.render.frames import render_frames
from jobs.render.held import Clock, Held
from jobs.render.mitsuba.kernels import FOLDER, VARIABLE, Kernels
from jobs.render.mitsuba.variants import Proof, choose
from jobs.render.sandbox import Room, farm_python
from jobs.render.scene_paths import check_scene
from jobs.render.spec import Spec


class MitsubaDriver:
    """Starts and asks the child of :mod:`jobs.render.mitsuba.child`."""

    def start(self, key: str, spec: Spec, task: TaskContext, host: Host, folder: Path) -> Held:
        """Check the scene's paths, choose the variant, start the child."""
        with host.phase("fetch"):
            root = host.assets()
            linked = links(root, check_scene(root, spec.scene, owner(host)))
        with host.phase("load"):
            proof = choose(spec, str(task.device.get("kind", "cpu")))
            threads = _threads(task)
            on_gpu = spec.device == "cuda"
            room = Room(root, folder, linked, cuda=on_gpu)
            limit = memory_limit(spec)
            # CUDA reserves far more addresses than it uses
            limits = Limits(limit, process_limit(threads), private=not on_gpu)
            program = farm_python("jobs.render.mitsuba.child")
            kernels = _kernels(task)
            kernels.lay_out(folder)
            child = Child(program, room, _environment(proof, spec, threads), limits)
        held = Held(child, key, limit, {"variant": proof.variant, "reason": proof.reason})
        held.after_task = lambda: _take_over(kernels, folder, host)
        return held

    def load(self, held: Held, spec: Spec, task: TaskContext, host: Host) -> None:
        """Have the scene loaded in the chosen variant."""
        threads = _threads(task)
        held.ask(
            "load",
            spec=spec.model_dump(mode="json"),
            variant=held.facts["variant"],
            threads=threads,
            root=str(held.child.inputs),
            scratch=str(held.child.output),
        )
        answer = held.wait(("loaded",), f"loading {spec.scene}", Clock(spec.frame_timeout_s), host)
        reason = held.facts["reason"]
        held.facts = {
            **{k: v for k, v in answer.items() if k not in {"event", "seconds"}},
            "load_s": round(float(answer["seconds"]), 4),
            "threads": threads,
            "confinement": held.child.describe(),
            "reason": reason,
        }
        host.log.write(
            f"{spec.scene} loaded in {answer['seconds']:.2f} s: Mitsuba {answer['mitsuba']} "
            f"{answer['variant']} ({reason}), {threads} threads, {answer['samples']} samples, "
            f"child confined by {held.facts['confinement']}"
        )

    def work(self, held: Held, spec: Spec, task: TaskContext, host: Host) -> None:
        """Render the frames; the result tells the exact camera of every frame of the chunk."""
        target_s = spec.chunk_target(float(held.facts["load_s"]))
        numbers = list(task.frames or ())
        times = render_frames(held, numbers, task, host, spec.frame_timeout_s, {}, target_s)
        with host.phase("work"):
            host.result(_found(held, task, numbers[len(times) :], host))
        held.after_task()


def _found(held: Held, task: TaskContext, left: list[int], host: Host) -> dict[str, Any]:
    """The cameras of the chunk; those of frames that are ``left`` to other tasks are told by these."""
    chunk = task.payload.get("frames")
    wanted = list(FrameRange.parse(str(chunk))) if chunk else list(task.frames or ())
    wanted = [number for number in wanted if number not in left]
    held.ask("poses", numbers=wanted)
    answer = held.wait(("poses",), "reading the cameras", Clock(60.0), host)
    return {"convention": "opengl", "cameras": answer["cameras"], "device": held.facts}


def _kernels(task: TaskContext) -> Kernels:
    key = task.step.get("scene_key")
    return Kernels(settings().run_dir / "kernels", str(key) if key else None)


def _take_over(kernels: Kernels, folder: Path, host: Host) -> None:
    if count := kernels.take_over(folder):
        host.log.write(f"kept {count} compiled kernels for the next renderer of this scene")


def _threads(task: TaskContext) -> int:
    return int(task.device.get("threads") or len(os.sched_getaffinity(0)))


def _environment(proof: Proof, spec: Spec, threads: int) -> dict[str, str]:
    """What a child is told; the slot's own environment stays with the slot."""
    env = {
        **dict(proof.env),
        "OMP_NUM_THREADS": str(threads),
        "NANOTHREAD_NUM_THREADS": str(threads),
        # relative to where the child is started, which is its output folder in every confinement
        VARIABLE: FOLDER,
    }
    if spec.device == "cuda":
        for name in (
            "CUDA_VISIBLE_DEVICES",
            "CUDA_DEVICE_ORDER",
            "DRJIT_LIBCUDA_PATH",
            "DRJIT_LIBOPTIX_PATH",
        ):
            if name in os.environ:
                env[name] = os.environ[name]
    return env
