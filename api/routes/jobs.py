"""Jobs: submit, validate, list, read, change, command, and why they wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Body, Query, Request, Response

from api import pages, submitting, versions, visible
from api.auth import Commander, Principal, Submitter, Viewer
from api.idempotent import keep_answer
from api.models.common import Page
from api.models.jobs import SUBMIT_EXAMPLE, Job, JobChange, JobSubmit, Reason, Retake, RetakeMade, Validation
from api.models.work import JobDetail, Step
from api.pages import Cursor, Limit
from api.problems import invalid_parameter
from api.route import FarmRoute
from api.routes.frames import retake
from api.services import Services, Use
from api.versions import IfMatch
from farm import failures, submission, why
from farm.errors import LimitExceeded
from farm.lifecycle import commands
from farm.repositories.job_changes import change_job as change
from farm.repositories.reading import jobs, machines, people
from farm.repositories.reading.jobs import JobFilter
from farm.states import GroupState

router = APIRouter(prefix="/v1", route_class=FarmRoute)

Submitted = Annotated[
    JobSubmit, Body(openapi_examples={"turntable": {"summary": "A turntable", "value": SUBMIT_EXAMPLE}})
]
_OPEN = (GroupState.WAITING, GroupState.RUNNING)
_MADE: dict[int | str, dict[str, Any]] = {409: {"description": "Idempotency-Key in use, or a reference gone"}}
_CHANGED: dict[int | str, dict[str, Any]] = {
    412: {"description": "It changed"},
    428: {"description": "No tag"},
}
_STATE: dict[int | str, dict[str, Any]] = {409: {"description": "Its state does not allow this"}}


@router.post("/jobs", tags=["jobs"], status_code=201, responses=_MADE)
def submit_job(request: Request, body: Submitted, use: Use, who: Submitter, response: Response) -> JobDetail:
    """Submit a job: all of it is stored in one transaction, or nothing is."""
    checked = submitting.check(use, who, body)
    submitting.refuse_missing(checked.missing)
    try:
        with use.writing("scheduler") as conn:
            job_id = submission.submit(conn, checked.submission, checked.plan, use.settings)
            made = detail(conn, visible.job(conn, who, job_id))
            # in the same transaction, so that a crash cannot leave a job whose answer is not kept
            keep_answer(request, conn, 201, made, {"Location": f"/v1/jobs/{job_id}"})
    except sa.exc.IntegrityError as error:
        raise submitting.refused_late(error) from error
    except LimitExceeded as error:
        raise submitting.too_large(error.message, body.spec) from error
    response.headers["Location"] = f"/v1/jobs/{job_id}"
    versions.tag(response, made.version)
    return made


@router.post("/jobs/validate", tags=["jobs"])
def validate_job(body: Submitted, use: Use, who: Submitter) -> Validation:
    """Check a job as submitting would, and say what it would make; nothing is stored.

    Assets that are not uploaded yet are listed, not refused.
    """
    return submitting.measure(use, submitting.check(use, who, body))


@router.get("/jobs", tags=["jobs"])
def list_jobs(
    use: Use,
    who: Viewer,
    state: Annotated[list[GroupState], Query(description="Repeat it for several states")] = [],  # noqa: B006
    project: Annotated[str | None, Query(max_length=200, description="Name or id")] = None,
    user: Annotated[str | None, Query(max_length=200, description="Name or id")] = None,
    kind: Annotated[str | None, Query(max_length=40)] = None,
    q: Annotated[str | None, Query(max_length=200, description="Part of the name")] = None,
    paused: Annotated[bool | None, Query()] = None,
    id: Annotated[
        str | None,
        Query(
            pattern="^(job_)?[0-9a-f]{1,32}$", description="Beginning or end of the id", examples=["3f9a1c"]
        ),
    ] = None,
    label: Annotated[
        list[Annotated[str, Query(max_length=300)]],
        Query(max_length=10, description="`name:value`; all of them must match", examples=[["shot:s010"]]),
    ] = [],  # noqa: B006
    limit: Limit = pages.DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Job]:
    """Jobs, newest first; for a key that may submit and no more, its user's."""
    position = pages.decode("jobs", cursor, [float, str])
    labels = []
    for text in label:
        name, colon, value = text.partition(":")
        if not colon or not name:
            raise invalid_parameter("query", "label", f"label {text[:80]!r}: write name:value")
        if '"' in name or "\\" in name:
            raise invalid_parameter("query", "label", f"label {text[:80]!r}: no label has such a name")
        labels.append((name, value))
    with use.db.read() as conn:
        project_id, user_id = who.project_id, who.user_id if who.own_alone else None
        if project is not None:
            found = people.find_project(conn, project)
            if found is None or not who.sees(found["id"]):
                return Page[Job](items=[], next=None)
            project_id = found["id"]
        if user is not None:
            person = people.find_user(conn, user)
            if person is None or (who.own_alone and person["id"] != who.user_id):
                return Page[Job](items=[], next=None)
            user_id = person["id"]
        wanted = JobFilter(project_id, user_id, [s.value for s in state], kind, q, paused, labels, id)
        rows = jobs.list_jobs(conn, wanted, position, limit + 1)
    rows, following = pages.page("jobs", rows, limit, lambda job: [job["created_at"], job["id"]])
    return Page[Job](items=[Job.model_validate(job) for job in rows], next=following)


@router.get("/jobs/{job_id}", tags=["jobs"])
def read_job(job_id: str, use: Use, who: Viewer, response: Response) -> JobDetail:
    """One job with its steps and all that was submitted."""
    with use.db.read() as conn:
        found = detail(conn, visible.job(conn, who, job_id))
    versions.tag(response, found.version)
    return found


def detail(conn: sa.Connection, row: dict[str, Any]) -> JobDetail:
    """A job's row with its spec, assets and steps."""
    steps = jobs.list_steps(conn, row["id"])
    waiting = [(step["name"], step["pool"], step["requires"]) for step in steps if step["state"] in _OPEN]
    failed = row["state"] == GroupState.FAILED
    more = {
        "error": row["error"] or (failures.of_job(conn, row["id"]) if failed else None),
        "assets": jobs.job_assets(conn, row["id"]),
        "after": jobs.job_after(conn, row["id"]),
        "steps": [Step.model_validate(step) for step in steps],
        "warnings": [reason.text for reason in why.unserved(conn, waiting)],
    }
    return JobDetail.model_validate({**row, **more})


@router.patch("/jobs/{job_id}", tags=["jobs"], responses=_CHANGED)
def change_job(
    job_id: str, body: JobChange, use: Use, who: Commander, response: Response, if_match: IfMatch = None
) -> JobDetail:
    """Change a job's priority, labels or name."""
    version = versions.expected(if_match)
    values = body.model_dump(exclude_unset=True)
    for name, value in values.items():
        if value is None:
            raise invalid_parameter("body", name, f"{name} cannot be null; leave it out to keep it")
    with use.writing("scheduler") as conn:
        who.require_command(visible.job(conn, who, job_id))
        change(conn, job_id, values, version)
        changed = detail(conn, visible.job(conn, who, job_id))
    versions.tag(response, changed.version)
    return changed


@router.delete("/jobs/{job_id}", tags=["jobs"], status_code=204, response_class=Response, responses=_STATE)
def delete_job(job_id: str, use: Use, who: Commander) -> None:
    """Delete a job that has ended, with its steps, tasks, frames and records."""
    with use.writing() as conn:
        who.require_command(visible.job(conn, who, job_id))
        commands.delete_job(conn, job_id)


def _command(
    use: Services, who: Principal, job_id: str, command: Callable[[sa.Connection, str], object]
) -> JobDetail:
    with use.db.write() as conn:
        who.require_command(visible.job(conn, who, job_id))
        command(conn, job_id)
        changed = detail(conn, visible.job(conn, who, job_id))
        nodes = machines.nodes_of_job(conn, job_id)
    use.wake("scheduler", *(f"node.{node_id}" for node_id in nodes))
    return changed


@router.post("/jobs/{job_id}/cancel", tags=["jobs"], responses=_STATE)
def cancel_job(job_id: str, use: Use, who: Commander) -> JobDetail:
    """Cancel a job: what waits is cancelled at once, what runs stops at its next step."""
    return _command(use, who, job_id, commands.cancel_job)


@router.post("/jobs/{job_id}/pause", tags=["jobs"], responses=_STATE)
def pause_job(job_id: str, use: Use, who: Commander) -> JobDetail:
    """Pause a job: nothing new begins, what runs is parked."""
    return _command(use, who, job_id, commands.pause_job)


@router.post("/jobs/{job_id}/resume", tags=["jobs"], responses=_STATE)
def resume_job(job_id: str, use: Use, who: Commander) -> JobDetail:
    """Let a paused job go on."""
    return _command(use, who, job_id, commands.resume_job)


@router.post("/jobs/{job_id}/retry", tags=["jobs"], responses=_STATE)
def retry_job(job_id: str, use: Use, who: Commander) -> JobDetail:
    """Run the failed and unreachable tasks of a job again, and only those."""
    return _command(use, who, job_id, commands.retry_job)


@router.post("/jobs/{job_id}/retake", tags=["jobs"], status_code=201, responses=_STATE)
def retake_job(job_id: str, body: Retake, use: Use, who: Commander) -> RetakeMade:
    """Make frames of one step again as a new take; the old takes stay as they are."""
    with use.writing("scheduler") as conn:
        who.require_command(visible.job(conn, who, job_id))
        step = visible.step_of_job(conn, job_id, body.step)
        return retake(conn, use, step["id"], body.frames)


@router.get("/jobs/{job_id}/why", tags=["jobs"])
def why_job(
    job_id: str, use: Use, who: Viewer, limit: Limit = pages.DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[Reason]:
    """What a job waits for; an empty list: nothing holds it."""
    with use.db.read() as conn:
        visible.job(conn, who, job_id)
        return _reasons(conn, use, job_id, limit, cursor)


@router.get("/tasks/{task_id}/why", tags=["work"])
def why_task(
    task_id: str, use: Use, who: Viewer, limit: Limit = pages.DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[Reason]:
    """What a task waits for; an empty list: nothing holds it."""
    with use.db.read() as conn:
        visible.task(conn, who, task_id)
        return _reasons(conn, use, task_id, limit, cursor)


def _reasons(conn: Any, use: Services, subject: str, limit: int, cursor: str | None) -> Page[Reason]:
    position = pages.decode("why", cursor, [int])
    start = position[0] if position else 0
    reasons = why.why(conn, subject, use.settings)[max(0, start) :]
    following = pages.encode("why", [start + limit]) if len(reasons) > limit else None
    return Page[Reason](items=[Reason.model_validate(reason) for reason in reasons[:limit]], next=following)
