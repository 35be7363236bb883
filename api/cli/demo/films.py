"""The demo's films. To add one, add an entry to :data:`FILMS`, before the turntable, which comes last."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from api.cli.outputs import plain_name
from api.cli.submit import send
from farm.client import FarmClient
from farm.client.models import Job
from farm.errors import NotFound
from jobs.video.folder import inspect
from jobs.video.models import body_of


@dataclass(frozen=True, slots=True)
class DemoFilm:
    """One film: ``module`` offers ``spec()``, the job's spec, and ``assets()``, its files by job path.

    It may offer ``models()``, folders of the models that the job names, and ``available()``, whether what
    the film is made from is in this tree.
    """

    name: str
    kind: str
    module: str
    title: str

    def available(self) -> bool:
        """Whether this tree holds what the film is made from."""
        return bool(getattr(importlib.import_module(self.module), "available", lambda: True)())

    def submit(self, farm: FarmClient) -> Job:
        """Upload what the film needs and submit its job."""
        module = importlib.import_module(self.module)
        for name, folder in getattr(module, "models", dict)().items():
            farm.add_model(body_of(inspect(name, folder)))
        body = {
            "kind": self.kind,
            "name": self.title,
            "project": "default",
            "labels": {"show": "demo"},
            "spec": module.spec(),
        }
        return send(farm, body, module.assets())

    def fetch(self, farm: FarmClient, job_id: str, folder: Path) -> Path:
        """Download the finished film, checked against its hash."""
        for artifact in farm.artifacts(job_id):
            if artifact.media_type.startswith("video/"):
                suffix = Path(plain_name(artifact.name)).suffix
                return farm.download_artifact(artifact, folder / f"{self.title}{suffix}")
        raise NotFound(f"{self.name}: the job is done but has no film")


FILMS = [
    DemoFilm("video", "video", "jobs.video.demo", "moving-shape"),
    DemoFilm("render", "render", "jobs.render.demo", "turntable"),
]
