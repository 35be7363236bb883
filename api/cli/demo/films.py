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

    It may offer ``models()``, folders of the models that the job names; ``available()``, whether what the
    film is made from is here; ``before()``, the body of a job that comes first, whose id ``spec`` then takes
    and whose files ``assets()`` are; and ``figure(artifacts)``, a line about what came out.
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
        common = {"project": "default", "labels": {"show": "demo"}}
        body = {"kind": self.kind, "name": self.title, **common}
        if not hasattr(module, "before"):
            return send(farm, {**body, "spec": module.spec()}, module.assets())
        first = send(farm, {**module.before(), **common}, module.assets())
        return send(farm, {**body, "spec": module.spec(first.id), "after": [first.id]}, {})

    def figure(self, farm: FarmClient, job_id: str) -> str:
        """A line about what came out; empty where the film has none to tell."""
        module = importlib.import_module(self.module)
        found = {item.name: item.meta for item in farm.artifacts(job_id)}
        return str(getattr(module, "figure", lambda _: "")(found))

    def fetch(self, farm: FarmClient, job_id: str, folder: Path) -> Path:
        """Download the finished film, checked against its hash."""
        for artifact in farm.artifacts(job_id):
            if artifact.media_type.startswith("video/"):
                suffix = Path(plain_name(artifact.name)).suffix
                return farm.download_artifact(artifact, folder / f"{self.title}{suffix}")
        raise NotFound(f"{self.name}: the job is done but has no film")


FILMS = [
    DemoFilm("video", "video", "jobs.video.demo", "moving-shape"),
    DemoFilm("nerf", "nerf", "jobs.nerf.demo", "orbit"),
    DemoFilm("render", "render", "jobs.render.demo", "turntable"),
]
