"""Artifacts: films, reports and other files that a job made besides frames."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from api import content, pages, visible
from api.auth import Viewer
from api.models.common import Page
from api.models.work import Artifact
from api.pages import Cursor, Limit
from api.route import FarmRoute
from api.routes.frames import Binary
from api.services import Use
from farm.repositories.reading import frames

router = APIRouter(prefix="/v1", route_class=FarmRoute)


def _artifact(row: dict[str, Any]) -> Artifact:
    return Artifact.model_validate({**row, "url": f"/v1/artifacts/{row['id']}/content"})


@router.get("/jobs/{job_id}/artifacts", tags=["artifacts"])
def list_artifacts(
    job_id: str, use: Use, who: Viewer, limit: Limit = pages.DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[Artifact]:
    """Files that came out of a job besides frames, oldest first."""
    position = pages.decode("artifacts", cursor, [float, str])
    with use.db.read() as conn:
        visible.job(conn, who, job_id)
        rows = frames.list_artifacts(conn, job_id, position, limit + 1)
    rows, following = pages.page("artifacts", rows, limit, lambda row: [row["created_at"], row["id"]])
    return Page[Artifact](items=[_artifact(row) for row in rows], next=following)


@router.get("/artifacts/{artifact_id}", tags=["artifacts"])
def read_artifact(artifact_id: str, use: Use, who: Viewer) -> Artifact:
    """One artifact's record."""
    with use.db.read() as conn:
        return _artifact(visible.artifact(conn, who, artifact_id))


@router.get("/artifacts/{artifact_id}/content", tags=["artifacts"], responses=Binary, response_class=Response)
def read_artifact_content(
    request: Request,
    artifact_id: str,
    use: Use,
    who: Viewer,
    download: Annotated[bool, Query(description="Save it instead of showing it")] = False,
) -> Response:
    """The artifact's bytes, or a range of them, so that a film plays in a page."""
    with use.db.read() as conn:
        found = visible.artifact(conn, who, artifact_id)
    return content.serve(
        request,
        use.store,
        found["sha256"],
        name=found["name"].rsplit("/", 1)[-1],
        media_type=found["media_type"].partition(";")[0].strip().lower(),
        download=download,
    )
