"""From a request to a plan: what is checked before a job is stored, for validating and submitting alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from api import asset_paths
from api.auth import Principal
from api.models.jobs import JobSubmit, PlannedStep, Validation
from api.problems import HttpProblem, escape
from api.services import Services
from farm.errors import FieldFault, InvalidInput, LimitExceeded
from farm.plan import JobPlan, StepPlan
from farm.repositories import models
from farm.repositories.reading import frames, jobs, people
from farm.submission import Submission
from farm.why import unserved
from jobs import registry
from jobs.kind import Asset, ExpandContext
from jobs.video.models import version_of

MAX_FAULTS = 100


@dataclass(frozen=True, slots=True)
class Checked:
    """A request that may be stored as it stands, unless assets are missing."""

    submission: Submission
    plan: JobPlan
    missing: dict[str, str]
    """Asset path to SHA-256 of bytes that the farm lacks."""


def check(use: Services, who: Principal, body: JobSubmit) -> Checked:
    """Check a request whole: kind, spec, project, asset paths, jobs to wait for; expand it. Stores nothing.

    ``expand`` sees missing assets with a size of 0. Raises the :class:`farm.errors.InvalidInput` or
    :class:`~api.problems.HttpProblem` that names each bad field.
    """
    kind = registry.kind(body.kind)
    asset_paths.check(body.assets, "/assets")
    spec = kind.parse(body.spec)
    with use.db.read() as conn:
        project_id = _project(conn, who, body.project)
        _check_after(conn, who, body.after)
        sizes = frames.known_contents(conn, sorted(set(body.assets.values())))
    lost = {sha256 for sha256 in sizes if not use.store.exists(sha256)}
    missing = {path: sha256 for path, sha256 in body.assets.items() if sha256 not in sizes or sha256 in lost}
    context = ExpandContext(
        assets={path: Asset(path, sha256, sizes.get(sha256, 0)) for path, sha256 in body.assets.items()},
        max_tasks=use.settings.max_tasks,
        max_frames=use.settings.max_frames,
        model=lambda reference: _model(use, reference),
        model_names=lambda: _model_names(use),
    )
    plan = kind.expand(spec, context)
    if not missing:
        kind.check_attachments(spec, plan, lambda path: use.store.path(body.assets[path]))
    submission = Submission(
        name=body.name,
        kind=body.kind,
        project_id=project_id,
        user_id=who.user_id,
        priority=body.priority,
        labels=dict(body.labels),
        # with the defaults of today filled in, so that a later version of the kind does not change the job
        spec=spec.model_dump(mode="json", by_alias=True),
        assets=dict(body.assets),
        after=list(dict.fromkeys(body.after)),
        paused=body.paused,
    )
    return Checked(submission, plan, missing)


def _model(use: Services, reference: str) -> Mapping[str, Any] | None:
    with use.db.read() as conn:
        row = models.find(conn, reference)
    return version_of(row) if row is not None else None


def _model_names(use: Services) -> list[str]:
    with use.db.read() as conn:
        return models.names(conn)


def refuse_missing(missing: dict[str, str]) -> None:
    """Raise :class:`farm.errors.InvalidInput` that names every asset that must be uploaded first."""
    if not missing:
        return
    faults = [
        FieldFault(f"/assets/{escape(path)}", f"the farm lacks {sha256}; upload it to /v1/assets/{sha256}")
        for path, sha256 in sorted(missing.items())
    ]
    names = ", ".join(sorted(missing)[:5]) + (" …" if len(missing) > 5 else "")
    raise InvalidInput(
        f"{len(missing)} assets must be uploaded first: {names}; PUT each to /v1/assets/HASH",
        faults[:MAX_FAULTS],
    )


def measure(use: Services, checked: Checked) -> Validation:
    """Count what the plan would make, without storing it; raises :class:`farm.errors.LimitExceeded`."""
    steps: list[PlannedStep] = []
    total_tasks = total_frames = 0
    for step in checked.plan.steps:
        tasks = frames_of_step = 0
        for task in step.tasks:
            tasks += 1
            frames_of_step += len(task.frames) if task.frames is not None else 0
            _within(use, checked.submission.spec, total_tasks + tasks, total_frames + frames_of_step)
        total_tasks += tasks
        total_frames += frames_of_step
        steps.append(_planned(step, tasks, frames_of_step))
    with use.db.read() as conn:
        wanted = [(step.name, step.pool, step.requires) for step in checked.plan.steps]
        warnings = [reason.text for reason in unserved(conn, wanted)]
    return Validation(
        warnings=warnings,
        tasks=total_tasks,
        frames=total_frames,
        steps=steps,
        missing=sorted(set(checked.missing.values())),
    )


def too_large(message: str, spec: Mapping[str, Any]) -> LimitExceeded:
    """A job over a limit; the frames make it so where it has any."""
    return LimitExceeded(message, [FieldFault("/spec/frames" if "frames" in spec else "/spec", message)])


def _within(use: Services, spec: Mapping[str, Any], tasks: int, frames_total: int) -> None:
    if tasks > use.settings.max_tasks:
        message = (
            f"the job has more than {use.settings.max_tasks:,} tasks; use larger chunks or split the job"
        )
    elif frames_total > use.settings.max_frames:
        message = f"the job has more than {use.settings.max_frames:,} frames; split it into several jobs"
    else:
        return
    raise too_large(message, spec)


def _planned(step: StepPlan, tasks: int, frames_of_step: int) -> PlannedStep:
    return PlannedStep(
        name=step.name,
        engine=step.engine,
        pool=step.pool,
        tasks=None if step.deferred else tasks,
        frames=None if step.deferred else frames_of_step,
        deferred=step.deferred,
        outputs=[
            {"name": o.name, "format": o.format, "width": o.width, "height": o.height} for o in step.outputs
        ],
        requires=dict(step.requires),
    )


def _project(conn: sa.Connection, who: Principal, name: str | None) -> str:
    if name is None:
        if who.project_id is not None:
            return who.project_id
        known = people.list_projects(conn, limit=2)
        if len(known) == 1:
            return str(known[0]["id"])
        message = "say which project pays; this farm has several" if known else "this farm has no project yet"
        raise InvalidInput(message, [FieldFault("/project", message)])
    found = people.find_project(conn, name)
    if found is None or not who.sees(found["id"]):
        message = f"there is no project {name[:80]!r}"
        raise InvalidInput(message, [FieldFault("/project", message)])
    return str(found["id"])


def _check_after(conn: sa.Connection, who: Principal, after: list[str]) -> None:
    projects = jobs.project_of(conn, after)
    faults = []
    for index, job_id in enumerate(after):
        if job_id not in projects or not who.sees(projects[job_id]):
            faults.append(FieldFault(f"/after/{index}", f"there is no job {job_id!r} to wait for"))
    if faults:
        raise InvalidInput(faults[0].message, faults[:MAX_FAULTS])


def refused_late(error: sa.exc.IntegrityError) -> HttpProblem:
    """A reference that went away between the check and the write (an asset collected, a job deleted)."""
    return HttpProblem(
        409,
        "conflict",
        "an asset or a job that this one refers to was removed just now; upload or name it again",
    )
