"""Generations and tasks over tiny pipelines, as submission would make them, and a host that keeps more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from farm.plan import StepPlan
from jobs.engine import TaskContext
from jobs.kind import ExpandContext
from jobs.video import folder
from jobs.video.expand import expand
from jobs.video.models import ModelVersion
from jobs.video.spec import Spec
from tests.kinds import tiny_pipelines
from tests.unit.jobs.local_host import LocalHost

SMALL: dict[str, dict[str, Any]] = {
    "wan": {"size": "32x32", "frames": 5},
    "wan22": {"size": "32x32", "frames": 5},
    "wan22_image": {"size": "32x32", "frames": 5},
    "ltx": {"size": "64x64", "frames": 9},
    "skyreels": {"size": "32x32", "frames": 5},
    "cogvideox": {"size": "32x32", "frames": 9},
}


@cache
def version(name: str) -> ModelVersion:
    """The tiny pipeline ``name`` as a model of the farm."""
    return folder.inspect(name, tiny_pipelines.folder(name))


def spec(name: str, **fields: Any) -> dict[str, Any]:
    """A small, quick job over the tiny pipeline ``name``."""
    small = {
        "model": name,
        "prompt": "a red cat runs",
        "negative_prompt": "blurry",
        "steps": 4,
        "dtype": "float32",
        "untested": True,
        "film": None,
        **SMALL[name],
    }
    return small | fields


def step_of(given: dict[str, Any], models: dict[str, ModelVersion] | None = None, **assets: Any) -> StepPlan:
    """The generate step of a spec's first seed."""
    known = models or {given["model"]: version(given["model"])}
    documents = {name: found.model_dump(mode="json") for name, found in known.items()}
    context = ExpandContext(model=documents.get, **assets)
    return expand(Spec.model_validate(given), context).steps[0]


@dataclass
class VideoHost(LocalHost):
    """Also keeps the checkpoint and the previews of the task that it is on."""

    saves: list[Path] = field(default_factory=list)
    previews: list[bytes] = field(default_factory=list)
    attempts: int = 0

    def save(self, path: Path) -> None:
        self.saves.append(self._keep(path))

    def restore(self) -> Path | None:
        return self.saves[-1] if self.saves else None

    def preview(self, png: bytes) -> None:
        self.previews.append(png)


def host(
    path: Path, on_check: Callable[[LocalHost], None] | None = None, files: dict[str, Path] | None = None
) -> VideoHost:
    """A host in ``path``, with assets by their job paths."""
    return VideoHost(folder=path, files=files or {}, on_check=on_check)


def task_of(at: VideoHost, given: dict[str, Any], **context: Any) -> TaskContext:
    """The task of a spec's first sample, with this host turned to it (again, where it was before)."""
    at.attempts += 1
    # one thread: with two, tests wait for each other's on a shared machine
    context.setdefault("assets", at.context().assets)
    task = next(iter(at.tasks(given, step_of(given, **context), threads=1)))
    at.scratch = at.folder / "scratch" / f"attempt-{at.attempts}"
    at.scratch.mkdir()
    return task
