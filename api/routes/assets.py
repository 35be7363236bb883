"""Assets: what goes in, by the SHA-256 of its bytes.

A hash is a capability: who knows one may ask whether the farm has the bytes and use them in a job. Reading
them back is another matter: a key of one project reads only what its own jobs refer to.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.concurrency import run_in_threadpool

from api import content
from api.auth import Anyone, Reader, Submitter, not_found
from api.idempotent import answered_once_as
from api.models.files import Ask, Asset, Missing, NamedAsset, Uploaded
from api.route import FarmRoute, StreamRoute
from api.routes.frames import Binary
from api.services import Services, Use
from api.uploads import ReceivedFile, receive, receive_form
from farm.lifecycle.publish import record_contents
from farm.repositories.reading import frames

router = APIRouter(prefix="/v1", route_class=FarmRoute)
streams = APIRouter(prefix="/v1", route_class=StreamRoute)

Hash = Annotated[
    str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256, 64 lower-case hexadecimal digits")
]
_BYTES = {"schema": {"type": "string", "format": "binary"}, "example": "the bytes of one file, as they are"}
_FORM = {
    "schema": {
        "type": "object",
        "properties": {"file": {"type": "array", "items": {"type": "string", "format": "binary"}}},
    },
    "example": {"file": ["the bytes of scene/scene.xml", "the bytes of scene/wood.png"]},
}


@router.post("/assets/missing", tags=["assets"])
def ask_missing(body: Ask, use: Use, who: Anyone) -> Missing:
    """Which of these hashes must still be uploaded."""
    return Missing(missing=missing_of(use, body.sha256))


def missing_of(use: Services, hashes: list[str]) -> list[str]:
    """Hashes whose bytes the farm lacks: in the database or in the store. In the order asked, once each."""
    wanted = list(dict.fromkeys(hashes))
    with use.db.read() as conn:
        known = frames.known_contents(conn, wanted)
    return [sha256 for sha256 in wanted if sha256 not in known or not use.store.exists(sha256)]


@router.get("/assets/{sha256}", tags=["assets"], responses=Binary, response_class=Response)
def read_asset(request: Request, sha256: Hash, use: Use, who: Reader) -> Response:
    """The bytes of an asset, or a range of them."""
    with use.db.read() as conn:
        known = frames.known_contents(conn, [sha256])
        if sha256 not in known or not (
            who.project_id is None or frames.project_refers_to(conn, who.project_id, sha256)
        ):
            not_found("asset", sha256)
    return content.serve(request, use.store, sha256, name=sha256, download=True)


@router.head(
    "/assets/{sha256}",
    tags=["assets"],
    responses={404: {"description": "Upload it first"}},
    response_class=Response,
)
def has_asset(sha256: Hash, use: Use, who: Anyone) -> Response:
    """Whether the farm has these bytes, and how many they are."""
    if missing_of(use, [sha256]):
        return Response(status_code=404)
    headers = {"ETag": f'"{sha256}"', "Accept-Ranges": "bytes", "Content-Length": str(use.store.size(sha256))}
    return Response(headers=headers, media_type="application/octet-stream")


@streams.put(
    "/assets/{sha256}",
    tags=["assets"],
    response_model=Asset,
    responses={201: {"model": Asset, "description": "Stored"}},
    openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": _BYTES}}},
)
async def put_asset(request: Request, response: Response, sha256: Hash, use: Use, who: Submitter) -> Asset:
    """Upload one file of any size under the hash of its bytes; 200 when the farm had it already.

    Bytes with another hash get 422 and leave nothing behind.
    """
    _, size = await receive(request, use.store, sha256)
    created = await run_in_threadpool(_record, use, [(sha256, size)])
    response.status_code = 201 if sha256 in created else 200
    return Asset(sha256=sha256, bytes=size, created=sha256 in created)


@streams.post(
    "/assets",
    tags=["assets"],
    status_code=201,
    response_model=Uploaded,
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": _FORM}}},
)
async def post_assets(request: Request, use: Use, who: Submitter) -> Any:
    """Upload files as a form; answers their hashes. Names must be relative paths without `..`."""
    files = await receive_form(request, use.store)
    # the bytes are content-addressed, so storing them twice changes nothing; the answer is still kept
    fingerprint = "\n".join(f"{file.sha256} {file.name}" for file in files).encode()
    return await answered_once_as(request, fingerprint, lambda: run_in_threadpool(_recorded, use, files))


def _recorded(use: Services, files: list[ReceivedFile]) -> Uploaded:
    created = _record(use, [(file.sha256, file.bytes) for file in files])
    return Uploaded(
        assets=[
            NamedAsset(name=file.name, sha256=file.sha256, bytes=file.bytes, created=file.sha256 in created)
            for file in files
        ]
    )


def _record(use: Services, contents: list[tuple[str, int]]) -> set[str]:
    """Note contents in the database; gives the hashes that were new."""
    with use.db.write() as conn:
        known = frames.known_contents(conn, [sha256 for sha256, _ in contents])
        record_contents(conn, contents)
    return {sha256 for sha256, _ in contents if sha256 not in known}
