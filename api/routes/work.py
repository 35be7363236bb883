"""Steps, tasks and attempts."""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api import content, pages, visible
from api.auth import Viewer
from api.middleware.security_headers import CONTENT_POLICY
from api.models.common import Page
from api.models.work import Attempt, Step, Task
from api.pages import Cursor, Limit
from api.route import FarmRoute
from api.services import Use
from farm.repositories.reading import jobs, work
from farm.states import AttemptState, TaskState

router = APIRouter(prefix="/v1", route_class=FarmRoute)

States = Annotated[list[TaskState], Query(alias="state", description="Repeat it for several states")]
AttemptStates = Annotated[list[AttemptState], Query(alias="state", description="Repeat it for several")]
Take = Annotated[int | None, Query(ge=1, le=2**31 - 1)]
StepName = Annotated[str | None, Query(max_length=200, description="Name or id of a step of this job")]

_TASK_KEY = ("step_position", "take", "position")


@router.get("/jobs/{job_id}/steps", tags=["work"])
def list_steps(
    job_id: str, use: Use, who: Viewer, limit: Limit = pages.DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[Step]:
    """The steps of a job, in order."""
    position = pages.decode("steps", cursor, [int])
    with use.db.read() as conn:
        visible.job(conn, who, job_id)
        rows = jobs.list_steps(conn, job_id, position, limit + 1)
    rows, following = pages.page("steps", rows, limit, lambda step: [step["position"]])
    return Page[Step](items=[Step.model_validate(step) for step in rows], next=following)


@router.get("/steps/{step_id}", tags=["work"])
def read_step(step_id: str, use: Use, who: Viewer) -> Step:
    """One step."""
    with use.db.read() as conn:
        return Step.model_validate(visible.step(conn, who, step_id))


@router.get("/jobs/{job_id}/tasks", tags=["work"])
def list_tasks_of_job(
    job_id: str,
    use: Use,
    who: Viewer,
    state: States = [],  # noqa: B006 - FastAPI copies defaults
    step: StepName = None,
    take: Take = None,
    limit: Limit = pages.DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Task]:
    """Tasks of a job, in order of step, take and position."""
    position = pages.decode("tasks", cursor, [int, int, int])
    with use.db.read() as conn:
        visible.job(conn, who, job_id)
        step_id = visible.step_of_job(conn, job_id, step)["id"] if step else None
        rows = work.list_tasks(
            conn, job_id=job_id, step_id=step_id, states=state, take=take, position=position, limit=limit + 1
        )
    rows, following = pages.page("tasks", rows, limit, lambda task: [task[name] for name in _TASK_KEY])
    return Page[Task](items=[Task.model_validate(task) for task in rows], next=following)


@router.get("/steps/{step_id}/tasks", tags=["work"])
def list_tasks_of_step(
    step_id: str,
    use: Use,
    who: Viewer,
    state: States = [],  # noqa: B006 - FastAPI copies defaults
    take: Take = None,
    limit: Limit = pages.DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Task]:
    """Tasks of a step, in order of take and position."""
    position = pages.decode("tasks", cursor, [int, int, int])
    with use.db.read() as conn:
        visible.step(conn, who, step_id)
        rows = work.list_tasks(
            conn, step_id=step_id, states=state, take=take, position=position, limit=limit + 1
        )
    rows, following = pages.page("tasks", rows, limit, lambda task: [task[name] for name in _TASK_KEY])
    return Page[Task](items=[Task.model_validate(task) for task in rows], next=following)


@router.get("/tasks/{task_id}", tags=["work"])
def read_task(task_id: str, use: Use, who: Viewer) -> Task:
    """One task."""
    with use.db.read() as conn:
        return Task.model_validate(visible.task(conn, who, task_id))


@router.get(
    "/tasks/{task_id}/preview",
    tags=["work"],
    responses={
        200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}},
        204: {"description": "There is none now"},
        304: {"description": "You have it already"},
    },
    response_class=Response,
)
def read_preview(request: Request, task_id: str, use: Use, who: Viewer) -> Response:
    """A picture of a task's work in progress; it is gone when the attempt has ended."""
    with use.db.read() as conn:
        found = visible.task(conn, who, task_id)
    path = use.settings.previews / f"{found['id']}.png"
    try:
        with path.open("rb") as file:
            etag = f'"{os.fstat(file.fileno()).st_mtime_ns:x}"'
            if content.matches(request.headers.get("if-none-match"), etag):
                return Response(status_code=304, headers={"ETag": etag})
            picture = file.read()
    except OSError:
        return Response(status_code=204)
    headers = {"ETag": etag, "Content-Security-Policy": CONTENT_POLICY, "Cache-Control": "no-cache"}
    return Response(picture, media_type="image/png", headers=headers)


@router.get("/jobs/{job_id}/attempts", tags=["work"])
def list_attempts_of_job(
    job_id: str,
    use: Use,
    who: Viewer,
    state: AttemptStates = [],  # noqa: B006 - FastAPI copies defaults
    limit: Limit = pages.DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Attempt]:
    """Attempts at a job's tasks, newest first."""
    position = pages.decode("attempts", cursor, [int])
    with use.db.read() as conn:
        visible.job(conn, who, job_id)
        rows = work.list_attempts(conn, job_id=job_id, states=state, position=position, limit=limit + 1)
    rows, following = pages.page("attempts", rows, limit, lambda attempt: [attempt["serial"]])
    return Page[Attempt](items=[Attempt.model_validate(attempt) for attempt in rows], next=following)


@router.get("/tasks/{task_id}/attempts", tags=["work"])
def list_attempts_of_task(
    task_id: str,
    use: Use,
    who: Viewer,
    state: AttemptStates = [],  # noqa: B006 - FastAPI copies defaults
    limit: Limit = pages.DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Attempt]:
    """Attempts at a task, newest first."""
    position = pages.decode("attempts", cursor, [int])
    with use.db.read() as conn:
        visible.task(conn, who, task_id)
        rows = work.list_attempts(conn, task_id=task_id, states=state, position=position, limit=limit + 1)
    rows, following = pages.page("attempts", rows, limit, lambda attempt: [attempt["serial"]])
    return Page[Attempt](items=[Attempt.model_validate(attempt) for attempt in rows], next=following)


@router.get("/attempts/{attempt_id}", tags=["work"])
def read_attempt(attempt_id: str, use: Use, who: Viewer) -> Attempt:
    """One attempt: how it ended, where its time went, what it used."""
    with use.db.read() as conn:
        return Attempt.model_validate(visible.attempt(conn, who, attempt_id))
