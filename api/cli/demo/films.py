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


@dataclass(frozen=True, slots=True)
class DemoFilm:
    """One film: ``module`` offers ``spec()``, the job's spec, and ``assets()``, its files by job path."""

    name: str
    kind: str
    module: str
    title: str

    def submit(self, farm: FarmClient) -> Job:
        """Upload what the film needs and submit its job."""
        module = importlib.import_module(self.module)
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
    DemoFilm("render", "render", "jobs.render.demo", "turntable"),
]
