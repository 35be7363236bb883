"""Frames: lists, files, thumbnails, and which take is current."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response

from api import content, pages, thumbnails, visible
from api.auth import Commander, Principal, Viewer
from api.models.common import Page
from api.models.jobs import CurrentTake, CurrentTakeSet, RetakeMade, RetakeStep
from api.models.work import Frame
from api.pages import Cursor, Limit
from api.route import FarmRoute
from api.services import Services, Use
from farm.errors import NotFound
from farm.frame_range import FrameRange
from farm.lifecycle import takes
from farm.repositories.reading import frames, jobs
from farm.repositories.reading.frames import FrameFilter

router = APIRouter(prefix="/v1", route_class=FarmRoute)

FrameState = Annotated[Literal["pending", "published"] | None, Query()]
Take = Annotated[int | None, Query(ge=1, le=2**31 - 1)]
Current = Annotated[bool | None, Query(description="true: only the take that films and downloads use")]
Bound = Annotated[int | None, Query(ge=-(2**31), le=2**31 - 1, description="Frame number, included")]
StepName = Annotated[str | None, Query(max_length=200, description="Name or id of a step of this job")]
TakePath = Annotated[int, Path(ge=1, le=2**31 - 1)]
NumberPath = Annotated[int, Path(ge=-(2**31), le=2**31 - 1)]
Binary: dict[int | str, dict[str, Any]] = {
    200: {"content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}},
    206: {
        "description": "The range that was asked for",
        "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
    },
    304: {"description": "You have it already"},
    416: {"description": "The range lies outside"},
}
Picture: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "image/png": {"schema": {"type": "string", "format": "binary"}},
            "image/jpeg": {"schema": {"type": "string", "format": "binary"}},
        }
    },
    304: {"description": "You have it already"},
    501: {"description": "The farm lacks what reads this format"},
}


def frame_of_row(row: dict[str, Any]) -> Frame:
    """A frame with the addresses of its files."""
    base = f"/v1/frames/{row['step_id']}/{row['take']}/{row['number']}"
    for file in row["files"]:
        file["url"] = f"{base}/{quote(file['output'], safe='')}"
    row["thumbnail_url"] = f"{base}/thumbnail" if row["files"] else None
    return Frame.model_validate(row)


def _list(
    use: Services, who: Principal, wanted: FrameFilter, step: str | None, limit: int, cursor: str | None
) -> Page[Frame]:
    position = pages.decode("frames", cursor, [int, int, int])
    with use.db.read() as conn:
        if wanted.job_id is not None:
            visible.job(conn, who, wanted.job_id)
            step_id = visible.step_of_job(conn, wanted.job_id, step)["id"] if step else None
        else:
            step_id = visible.step(conn, who, wanted.step_id or "")["id"]
        chosen = FrameFilter(
            wanted.job_id, step_id, wanted.state, wanted.take, wanted.current, wanted.first, wanted.last
        )
        rows = frames.list_frames(conn, chosen, position, limit + 1)
    rows, following = pages.page(
        "frames", rows, limit, lambda frame: [frame["step_position"], frame["number"], frame["take"]]
    )
    return Page[Frame](items=[frame_of_row(frame) for frame in rows], next=following)


@router.get("/jobs/{job_id}/frames", tags=["frames"])
def list_frames_of_job(
    job_id: str,
    use: Use,
    who: Viewer,
    step: StepName = None,
    state: FrameState = None,
    take: Take = None,
    current: Current = None,
    first: Bound = None,
    last: Bound = None,
    limit: Limit = pages.DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Frame]:
    """Frames of a job by step, number and take."""
    wanted = FrameFilter(job_id, None, state, take, current, first, last)
    return _list(use, who, wanted, step, limit, cursor)


@router.get("/steps/{step_id}/frames", tags=["frames"])
def list_frames_of_step(
    step_id: str,
    use: Use,
    who: Viewer,
    state: FrameState = None,
    take: Take = None,
    current: Current = None,
    first: Bound = None,
    last: Bound = None,
    limit: Limit = pages.DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Frame]:
    """Frames of a step by number and take."""
    wanted = FrameFilter(None, step_id, state, take, current, first, last)
    return _list(use, who, wanted, None, limit, cursor)


@router.get("/frames/{step_id}/{take}/{number}", tags=["frames"])
def read_frame(step_id: str, take: TakePath, number: NumberPath, use: Use, who: Viewer) -> Frame:
    """One frame with its files."""
    with use.db.read() as conn:
        return frame_of_row(visible.frame(conn, who, step_id, take, number))


@router.get(
    "/frames/{step_id}/{take}/{number}/thumbnail", tags=["frames"], responses=Picture, response_class=Response
)
def read_thumbnail(
    request: Request,
    step_id: str,
    take: TakePath,
    number: NumberPath,
    use: Use,
    who: Viewer,
    output: Annotated[str | None, Query(max_length=200, description="Which file; left out: the best")] = None,
    size: Annotated[int, Query(ge=16, le=1024, description="Longer side in pixels")] = 256,
    format: Annotated[thumbnails.Format, Query()] = "png",
) -> Response:
    """A small picture of a frame; EXR is tone-mapped."""
    with use.db.read() as conn:
        frame = visible.frame(conn, who, step_id, take, number)
    file = _best(frame, output)
    etag = f'"{file["sha256"]}-{size}.{format}"'
    headers = {"ETag": etag, "Cache-Control": "private, max-age=86400, immutable"}
    if content.matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    source = use.store.path(file["sha256"])
    if source is None:
        raise NotFound(f"the bytes of frame {number} ({file['output']}) are not on this machine")
    path = thumbnails.thumbnail(
        source, file["sha256"], file["format"], size, format, use.settings.data / "thumbnails"
    )
    return Response(path.read_bytes(), media_type=f"image/{format}", headers=headers)


@router.get(
    "/frames/{step_id}/{take}/{number}/{output}", tags=["frames"], responses=Binary, response_class=Response
)
def read_frame_file(
    request: Request,
    step_id: str,
    take: TakePath,
    number: NumberPath,
    output: str,
    use: Use,
    who: Viewer,
    download: Annotated[bool, Query(description="Save it instead of showing it")] = False,
) -> Response:
    """The bytes of one file of a frame, or a range of them."""
    with use.db.read() as conn:
        frame = visible.frame(conn, who, step_id, take, number)
        job = jobs.get_job(conn, frame["job_id"])
    file = next((file for file in frame["files"] if file["output"] == output), None)
    if file is None:
        known = ", ".join(item["output"] for item in frame["files"]) or "none yet"
        raise NotFound(f"frame {number} has no file {output[:80]!r}; it has {known}")
    stem, dot, ending = output.rpartition(".")
    name = f"{job['name'] if job else 'frame'}.{stem or output}.{number:04d}{dot}{ending if stem else ''}"
    media_type = content.MEDIA_TYPES.get(file["format"], "application/octet-stream")
    return content.serve(
        request, use.store, file["sha256"], name=name, media_type=media_type, download=download
    )


@router.post("/steps/{step_id}/retake", tags=["frames"], status_code=201)
def retake_step(step_id: str, body: RetakeStep, use: Use, who: Commander) -> RetakeMade:
    """Make frames of a step again as a new take; the old takes stay as they are."""
    with use.writing("scheduler") as conn:
        step = visible.step(conn, who, step_id)
        who.require_command(visible.job(conn, who, step["job_id"]))
        return retake(conn, use, step_id, body.frames)


def retake(conn: Any, use: Services, step_id: str, frames_text: str | None) -> RetakeMade:
    """Begin a new take of some or all frames of a step."""
    chosen = (
        FrameRange.parse(frames_text, max_frames=use.settings.max_frames, pointer="/frames")
        if frames_text is not None
        else None
    )
    return RetakeMade.model_validate(takes.retake(conn, step_id, chosen, settings=use.settings))


@router.post("/steps/{step_id}/current", tags=["frames"])
def set_current_take(step_id: str, body: CurrentTake, use: Use, who: Commander) -> CurrentTakeSet:
    """Choose the take that films and downloads use, for some frames of a step."""
    chosen = FrameRange.parse(body.frames, max_frames=use.settings.max_frames, pointer="/frames")
    with use.writing() as conn:
        step = visible.step(conn, who, step_id)
        who.require_command(visible.job(conn, who, step["job_id"]))
        changed = takes.set_current_take(conn, step_id, chosen, body.take)
    return CurrentTakeSet(step_id=step_id, take=body.take, frames=changed)


def _best(frame: dict[str, Any], output: str | None) -> dict[str, Any]:
    """The file to show: the one asked for, else a small picture rather than EXR, beauty first."""
    files: list[dict[str, Any]] = frame["files"]
    if output is not None:
        files = [file for file in files if file["output"] == output]
    if not files:
        raise NotFound(
            f"frame {frame['number']} has no file {output[:80]!r}" if output else "this frame has no file yet"
        )
    order = {"png": 0, "jpeg": 0, "exr": 1}
    return min(
        files,
        key=lambda file: (
            order.get(file["format"], 2),
            not file["output"].startswith("beauty"),
            file["output"],
        ),
    )
