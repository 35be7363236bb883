"""The engine of ``nerf``: pose, train, evaluate, export, views. A trained field stays loaded in its slot."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Final

import torch

from farm.frame_range import FrameRange
from jobs.engine import Host, TaskContext
from jobs.nerf import calm
from jobs.nerf.cameras import path_frames, path_views
from jobs.nerf.held import Held, load_held
from jobs.nerf.inputs.gather import gather
from jobs.nerf.inputs.prepare import prepare
from jobs.nerf.packing import DATASET, MODEL, pack, unpack_dataset
from jobs.nerf.paths import DEFAULT_FRAMES
from jobs.nerf.scene import Scene
from jobs.nerf.spec import Spec
from jobs.nerf.training import Trainer
from jobs.nerf.views import MOST_WAITING, make_views

_ITEM_SIZE: Final = {"uint8": 1, "uint16": 2, "float16": 2, "float32": 4}


class NerfEngine:
    """Runs in the slot's process; pycolmap runs in a child (:mod:`jobs.nerf.pose`)."""

    def __init__(self) -> None:
        self._held: Held | None = None

    def open(self, host: Host) -> None:
        """Prepare the process: a training allocates the same large arrays again and again."""
        calm.keep_pages()

    def close(self) -> None:
        """Forget the field."""
        self._held = None
        torch.cuda.empty_cache()

    def run(self, task: TaskContext, host: Host) -> None:
        """Do the stage that the task names."""
        spec = Spec.model_validate(dict(task.spec))
        torch.set_num_threads(_threads(task))
        stages: dict[str, Callable[[Spec, TaskContext, Host], None]] = {
            "pose": self._pose, "train": self._train, "evaluate": self._evaluate, "export": self._export,
            "views": self._views,
        }  # fmt: skip
        folder = host.scratch / "work"
        folder.mkdir()
        try:
            with calm.tiny_flushed():
                stages[str(task.payload["stage"])](spec, task, host)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _pose(self, spec: Spec, task: TaskContext, host: Host) -> None:
        work = host.scratch / "work"
        with host.phase("load"):
            raw = gather(spec, host, work)
        for note in raw.notes:
            host.log.write(note)
        with host.phase("work"):
            if not raw.posed:
                from jobs.nerf.pose.solve import solve

                raw = solve(raw, spec.pose, host, work / "pose", threads=_threads(task), seed=spec.seed)
            folder = work / "dataset"
            folder.mkdir()
            scene = prepare(raw, spec, host, folder)
            path = pack(scene, folder, host.scratch / DATASET)
        first = scene.views[0]
        found = {
            "width": first.width, "height": first.height, "views": len(scene.views),
            "train": len(scene.of("train")), "test": len(scene.of("test")), "bounded": scene.bounded,
            "world": scene.world.tolist(), "path_frames": path_frames(spec, host), **scene.about,
        }  # fmt: skip
        meta = {"views": len(scene.views), "format": "nerfstudio transforms.json"}
        with host.phase("write"):
            host.publish_artifact(DATASET, path, "application/zip", meta)
        host.result(found)
        host.progress(1.0, f"{len(scene.views)} pictures with cameras")
        host.log.write(
            f"{len(scene.views)} pictures, {found['train']} to train on, {found['test']} held out; the "
            f"scene is "
            f"{'bounded' if scene.bounded else 'without bounds'}, radius {scene.about['radius']:.4g} "
            f"source units"
        )

    def _train(self, spec: Spec, task: TaskContext, host: Host) -> None:
        folder = host.scratch / "work"
        with host.phase("load"):
            scene = unpack_dataset(host, folder)
            trainer = Trainer(spec, scene, folder, host)
        with host.phase("work"), trainer.reserved():
            why = trainer.run()
        path = host.scratch / MODEL
        with host.phase("write"):
            trainer.write(path)
            facts = trainer.summary(why)
            sha256 = host.publish_artifact(MODEL, path, "application/octet-stream", facts)
            host.preview(trainer.preview())
        self._held = Held(sha256, scene, trainer.field, trainer.look)
        host.keep_warm(str(task.step.get("warm_key")))
        host.result(facts)
        host.progress(1.0, trainer.note())
        host.log.write(f"trained until {why}: {trainer.note()}")

    def _evaluate(self, spec: Spec, task: TaskContext, host: Host) -> None:
        from jobs.nerf.evaluation import evaluate

        held = self._load(spec, task, host)
        folder = host.scratch / "work"
        with host.phase("load"):
            unpack_dataset(host, folder)
        with host.phase("work"):
            found, files = evaluate(spec, held, folder, host)
        with host.phase("write"):
            for name, path, media_type in files:
                host.publish_artifact(name, path, media_type, {**found["mean"], "views": len(found["views"])})
        host.result(found)
        host.progress(1.0, f"held out {found['mean'].get('psnr', 0.0):.2f} dB")

    def _export(self, spec: Spec, task: TaskContext, host: Host) -> None:
        from jobs.nerf.exports.write import export

        held = self._load(spec, task, host)
        with host.phase("work"):
            made = export(spec, held, host)
        with host.phase("write"):
            for name, path, media_type, meta in made:
                host.publish_artifact(name, path, media_type, meta)
        host.result({"exports": [{"name": name, **meta} for name, _, _, meta in made]})
        host.progress(1.0, f"{len(made)} exports")

    def _views(self, spec: Spec, task: TaskContext, host: Host) -> None:
        held = self._load(spec, task, host)
        width, height = (int(side) for side in task.step["size"])
        every = spec.frame_range() or FrameRange.parse(
            str(host.step_results("pose")[0].get("path_frames") or DEFAULT_FRAMES)
        )
        numbers = list(task.frames or ())
        views = path_views(spec, held.scene, every, numbers, (width, height), host)
        unit = float(1.0 / _scale(held.scene))
        threads = _threads(task)
        with host.reserve(_staged(task, threads), "spool", "frame staging"):
            make_views(
                held, spec, list(zip(numbers, views, strict=True)), host, unit=unit, threads=threads,
                peak=_peak_vram,
            )  # fmt: skip

    def _load(self, spec: Spec, task: TaskContext, host: Host) -> Held:
        with host.phase("load"):
            self._held = load_held(self._held, spec, host)
        host.keep_warm(str(task.step.get("warm_key")))
        return self._held


def _scale(scene: Scene) -> float:
    """Normalised length of one source length."""
    return float(abs(torch.linalg.det(torch.from_numpy(scene.world[:3, :3]))) ** (1.0 / 3.0))


def _staged(task: TaskContext, threads: int) -> int:
    size = sum(o["width"] * o["height"] * len(o["channels"]) * _ITEM_SIZE[o["dtype"]] for o in task.outputs)
    at_once = min(MOST_WAITING, threads) if task.spec.get("device") == "cuda" else 1
    return int(size) * max(1, at_once) + 4096


def _peak_vram() -> int | None:
    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else None


def _threads(task: TaskContext) -> int:
    return int(task.device.get("threads") or len(os.sched_getaffinity(0)))


def create() -> NerfEngine:
    """A fresh engine."""
    return NerfEngine()
