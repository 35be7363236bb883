"""``/v1/videos``: create, retrieve, list, content and delete as OpenAI's clients call them, over our jobs."""

from __future__ import annotations

import io
import math
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from PIL import Image

from api import content, submitting, video_request, visible
from api.auth import Commander, Principal, Submitter, Viewer, not_found
from api.idempotent import answered_once, keep_answer
from api.models.videos import Status, Video, VideoDeleted, VideoError, VideoPage, request_body
from api.problems import invalid_parameter
from api.route import FarmRoute, StreamRoute
from api.routes.frames import Binary
from api.services import Services, Use
from api.thumbnails import thumbnail
from api.video_request import Asked
from farm import failures, submission
from farm.db import tables as t
from farm.errors import Conflict, FieldFault, InvalidInput, NotFound
from farm.lifecycle import commands
from farm.repositories.reading import frames, jobs
from farm.repositories.reading.frames import FrameFilter
from farm.repositories.reading.jobs import JobFilter
from farm.states import GroupState
from jobs.video.payload import KEY

router = APIRouter(prefix="/v1", route_class=FarmRoute)
streams = APIRouter(prefix="/v1", route_class=StreamRoute)

_STATUS: dict[str, Status] = {
    GroupState.WAITING: "queued",
    GroupState.RUNNING: "in_progress",
    GroupState.DONE: "completed",
    GroupState.FAILED: "failed",
    GroupState.CANCELLED: "failed",
}
THUMBNAIL = 512
SHEET_CELLS = 16
SHEET_CELL = 256


@streams.post("/videos", tags=["videos"], response_model=Video, openapi_extra=request_body())
async def create_video(request: Request, use: Use, who: Submitter) -> Any:
    """Make a video: a job of the kind `video` with one film. JSON, or a form with the picture as a file.

    Beside OpenAI's fields every field of a video job's spec is taken (`steps`, `negative_prompt`, `preset`…).
    """
    asked = await video_request.read(request, use)

    async def answer() -> Response:
        made = await run_in_threadpool(_create, request, use, who, asked)
        return JSONResponse(made.model_dump(mode="json"))

    key = request.headers.get("idempotency-key")
    if key is None:
        return await answer()
    return await answered_once(request, key, answer, asked.fingerprint)


def _create(request: Request, use: Services, who: Principal, asked: Asked) -> Video:
    try:
        checked = submitting.check(use, who, asked.submit)
        submitting.refuse_missing(checked.missing)
    except InvalidInput as error:
        # the caller wrote no spec: its fields stand at the top of this request
        faults = [FieldFault(fault.pointer.removeprefix("/spec"), fault.message) for fault in error.faults]
        text = "; ".join(f"{f.pointer or '/'}: {f.message}" for f in faults[:5]) or error.message
        raise InvalidInput(text, faults) from None
    try:
        with use.writing("scheduler") as conn:
            job_id = submission.submit(conn, checked.submission, checked.plan, use.settings)
            made = _videos(conn, [visible.job(conn, who, job_id)])[0]
            keep_answer(request, conn, 200, made, {})
    except sa.exc.IntegrityError as error:
        raise submitting.refused_late(error) from error
    return made


@router.get("/videos", tags=["videos"])
def list_videos(
    use: Use,
    who: Viewer,
    after: Annotated[str | None, Query(max_length=48, description="The last id of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Annotated[Literal["asc", "desc"], Query(description="By time of creation")] = "desc",
) -> VideoPage:
    """Videos, newest first: every job of the kind `video` that the key sees."""
    with use.db.read() as conn:
        position = None
        if after is not None:
            before = jobs.get_job(conn, after)
            if before is None or not who.sees_job(before):
                raise invalid_parameter("query", "after", f"there is no video {after!r}")
            position = [before["created_at"], before["id"]]
        own = who.user_id if who.own_alone else None
        wanted = JobFilter(who.project_id, own, kind="video")
        rows = jobs.list_jobs(conn, wanted, position, limit + 1, ascending=order == "asc")
        found = _videos(conn, rows[:limit])
    return VideoPage(
        data=found,
        first_id=found[0].id if found else None,
        last_id=found[-1].id if found else None,
        has_more=len(rows) > limit,
    )


@router.get("/videos/{video_id}", tags=["videos"])
def read_video(video_id: str, use: Use, who: Viewer) -> Video:
    """One video: how far it is, and why it failed."""
    with use.db.read() as conn:
        return _videos(conn, [_video_job(conn, who, video_id)])[0]


@router.delete(
    "/videos/{video_id}", tags=["videos"], responses={409: {"description": "It is still being made"}}
)
def delete_video(video_id: str, use: Use, who: Commander) -> VideoDeleted:
    """Delete a video that has ended, with its frames and records; cancel one that is being made before."""
    with use.writing() as conn:
        who.require_command(_video_job(conn, who, video_id))
        commands.delete_job(conn, video_id)
    return VideoDeleted(id=video_id)


@router.get(
    "/videos/{video_id}/content",
    tags=["videos"],
    responses={**Binary, 409: {"description": "It is not ready"}},
    response_class=Response,
)
def read_video_content(
    request: Request,
    video_id: str,
    use: Use,
    who: Viewer,
    variant: Annotated[
        Literal["video", "thumbnail", "spritesheet"],
        Query(description="The film, its middle frame, or sixteen frames on one sheet"),
    ] = "video",
) -> Response:
    """The film (of the first seed; others are artifacts of the job), a thumbnail, or a sheet of frames."""
    with use.db.read() as conn:
        job = _video_job(conn, who, video_id)
        if job["state"] != GroupState.DONE:
            video = _videos(conn, [job])[0]
            raise Conflict(
                f"video {video_id} is {video.status} ({video.progress} %); ask when it is completed"
            )
        step = jobs.list_steps(conn, video_id, limit=1)[0]
        if variant == "video":
            film = _film(conn, video_id)
            name, media_type = film["name"].rsplit("/", 1)[-1], film["media_type"].partition(";")[0]
        else:
            wanted = FrameFilter(video_id, step["id"], "published", None, True, None, None)
            rows = frames.list_frames(conn, wanted, None, step["frames_total"])
    if variant == "video":
        return content.serve(request, use.store, film["sha256"], name=name, media_type=media_type)
    chosen = [rows[len(rows) // 2]] if variant == "thumbnail" else _spread(rows)
    pictures = [
        _small(use, row["files"][0], THUMBNAIL if variant == "thumbnail" else SHEET_CELL) for row in chosen
    ]
    if variant == "thumbnail":
        return Response(pictures[0].read_bytes(), media_type="image/jpeg")
    return Response(_sheet(pictures), media_type="image/jpeg")


def _film(conn: sa.Connection, video_id: str) -> dict[str, Any]:
    films = [
        row
        for row in frames.list_artifacts(conn, video_id, None, 1000)
        if str(row["media_type"]).startswith("video/")
    ]
    if not films:
        raise NotFound(
            f"video {video_id} was made without a film; its frames are at /v1/jobs/{video_id}/frames"
        )
    return min(films, key=lambda row: (row["media_type"] != "video/mp4", row["created_at"]))


def _spread(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    count = min(SHEET_CELLS, len(rows))
    return [rows[round(index * (len(rows) - 1) / max(1, count - 1))] for index in range(count)]


def _small(use: Services, file: dict[str, Any], size: int) -> Path:
    source = use.store.path(file["sha256"])
    if source is None:
        raise NotFound("the frame's file is not on this machine; fetch it by its own address")
    cache = use.settings.data / "thumbnails"
    return thumbnail(source, file["sha256"], file["format"], size, "jpeg", cache)


def _sheet(pictures: list[Path]) -> bytes:
    tiles = [Image.open(path).convert("RGB") for path in pictures]
    width, height = tiles[0].size
    columns = math.ceil(math.sqrt(len(tiles)))
    sheet = Image.new("RGB", (columns * width, math.ceil(len(tiles) / columns) * height))
    for index, tile in enumerate(tiles):
        sheet.paste(tile, (index % columns * width, index // columns * height))
    buffer = io.BytesIO()
    sheet.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _video_job(conn: sa.Connection, who: Principal, video_id: str) -> dict[str, Any]:
    found = jobs.get_job(conn, video_id)
    if found is None or not who.sees_job(found) or found["kind"] != "video":
        not_found("video", video_id)
    return found


def _videos(conn: sa.Connection, rows: list[dict[str, Any]]) -> list[Video]:
    ids = [row["id"] for row in rows]
    steps, tasks = t.steps.c, t.tasks.c
    first = sa.select(steps.job_id, steps.payload).where(steps.job_id.in_(ids), steps.position == 0)
    made = {job_id: payload[KEY] for job_id, payload in conn.execute(first)}
    running = (
        sa.select(steps.job_id, sa.func.sum(sa.func.coalesce(tasks.progress, 0.0)))
        .join(t.tasks, tasks.step_id == steps.id)
        .where(steps.job_id.in_(ids), tasks.state == "running")
        .group_by(steps.job_id)
    )
    begun = {job_id: float(total) for job_id, total in conn.execute(running)}
    for row in rows:
        if row["state"] == GroupState.FAILED:
            row["error"] = row["error"] or failures.of_job(conn, row["id"])
    return [_video(row, made[row["id"]], begun.get(row["id"], 0.0)) for row in rows]


def _video(row: dict[str, Any], generation: dict[str, Any], begun: float) -> Video:
    status = _STATUS[GroupState(row["state"])]
    share = (row["tasks_done"] + begun) / max(1, row["tasks_total"])
    error = None
    if row["state"] == GroupState.CANCELLED:
        error = VideoError(code="cancelled", message="the video was cancelled")
    elif status == "failed":
        error = VideoError(code="generation_failed", message=row["error"] or "the video could not be made")
    ended = row["finished_at"]
    model = generation["model"]
    return Video(
        id=row["id"],
        model=f"{model['name']}@{model['digest'][:12]}",
        status=status,
        progress=100 if status == "completed" else min(99, int(100 * share)),
        prompt=generation["prompt"],
        seconds=f"{float(generation['frames'] / Fraction(generation['fps'])):g}",
        size=f"{generation['width']}x{generation['height']}",
        created_at=int(row["created_at"]),
        completed_at=int(ended) if ended is not None and status == "completed" else None,
        error=error,
    )
