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
    """One film: ``module`` offers ``job() -> (body, files)``, what to submit and its assets by job path."""

    name: str
    module: str
    filename: str

    def submit(self, farm: FarmClient) -> Job:
        """Upload what the film needs and submit its job."""
        body, files = importlib.import_module(self.module).job()
        return send(farm, body, files)

    def fetch(self, farm: FarmClient, job_id: str, folder: Path) -> Path:
        """Download the finished film, checked against its hash."""
        for artifact in farm.artifacts(job_id):
            if artifact.media_type.startswith("video/"):
                suffix = Path(plain_name(artifact.name)).suffix
                return farm.download_artifact(artifact, folder / f"{self.filename}{suffix}")
        raise NotFound(f"{self.name}: the job is done but has no film")


FILMS = [
    DemoFilm("render", "jobs.render.demo", "turntable"),
]
