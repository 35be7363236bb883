"""The body of ``POST /v1/videos``, JSON or a form, turned into a job's own request."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from api import strict_json
from api.models.jobs import JobSubmit
from api.models.videos import VideoCreate
from api.problems import HttpProblem
from api.services import Services
from farm.errors import FieldFault, InvalidInput
from farm.lifecycle.publish import record_contents
from farm.repositories import models
from jobs.video.shorthand import TITLE

_SUFFIXES: Final = {
    b"\x89PNG\r\n\x1a\n": ("image", "png"),
    b"\xff\xd8\xff": ("image", "jpg"),
    b"II*\x00": ("image", "tif"),
    b"MM\x00*": ("image", "tif"),
    b"\x1aE\xdf\xa3": ("video", "mkv"),
}
_TEXTS: Final = frozenset({"prompt", "negative_prompt", "model", "size", "seconds", "name", "project"})
_OWN: Final = frozenset({"input_reference", "seed", "name", "project", "priority", "labels", "seconds"})
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_DATA_URL: Final = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)?;base64,(?P<data>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request; ``fingerprint`` stands for all that is in it."""

    submit: JobSubmit
    fingerprint: bytes


async def read(request: Request, use: Services) -> Asked:
    """Read, check and store what came with the request.

    Raises :class:`farm.errors.InvalidInput` and the problems of :mod:`api.problems` that name each bad field.
    """
    kind, _ = parse_options_header(request.headers.get("content-type", ""))
    file: UploadFile | None = None
    if kind == b"multipart/form-data":
        body, file = _of_form(await _form(request))
    elif kind == b"application/json":
        body = strict_json.parse(await request.body())
    else:
        raise HttpProblem(
            415,
            "unsupported-media-type",
            "send the video's fields as application/json or multipart/form-data",
        )
    try:
        asked = VideoCreate.model_validate(body)
    except ValidationError as error:
        faults = [{**item, "loc": ("body", *item["loc"])} for item in error.errors(include_url=False)]
        raise RequestValidationError(faults) from None
    reference = await _stored(use, asked, file)
    return await run_in_threadpool(_submit, use, asked, reference)


async def _form(request: Request) -> FormData:
    try:
        return await request.form(max_files=2, max_fields=60, max_part_size=1_000_000)
    except HTTPException as error:
        text = f"the form cannot be read: {error.detail}"
        faults = [{"in": "form", "pointer": "", "message": text}]
        raise HttpProblem(422, "invalid-input", text, faults=faults) from None


def _of_form(form: FormData) -> tuple[Any, UploadFile | None]:
    """Fields by name (numbers and lists as JSON) and the file."""
    body: dict[str, Any] = {}
    file: UploadFile | None = None
    for name, value in form.multi_items():
        if name in body or (name == "input_reference" and file is not None):
            raise _fault(name, "the field is given twice")
        if isinstance(value, UploadFile):
            if name != "input_reference":
                raise _fault(name, "the file belongs into the field input_reference")
            file = value
        elif name in _TEXTS:
            body[name] = value
        else:
            try:
                body[name] = json.loads(value)
            except (ValueError, RecursionError):
                body[name] = value
    try:
        text = json.dumps(body, allow_nan=False).encode()
    except ValueError:
        raise _fault("", "a number is not finite") from None
    return strict_json.parse(text), file


@dataclass(frozen=True, slots=True)
class _Reference:
    field: str
    path: str
    sha256: str


async def _stored(use: Services, asked: VideoCreate, file: UploadFile | None) -> _Reference | None:
    """The picture (or video) that came along, in the store."""
    wish = asked.input_reference
    if file is not None:
        return await run_in_threadpool(_put, use, _chunks(file))
    if wish is None:
        return None
    if (wish.image_url is None) == (wish.file_id is None):
        raise _fault("input_reference", "give exactly one of image_url and file_id")
    if wish.image_url is not None:
        match = _DATA_URL.fullmatch(wish.image_url)
        if match is None:
            raise _fault(
                "input_reference/image_url",
                "the farm fetches nothing from elsewhere; send a data URL (data:image/png;base64,…), or "
                "upload the file",
            )
        try:
            data = base64.b64decode(match["data"], validate=True)
        except (binascii.Error, ValueError):
            raise _fault("input_reference/image_url", "this is no base64") from None
        return await run_in_threadpool(_put, use, iter([data]))
    assert wish.file_id is not None
    if not _SHA256.fullmatch(wish.file_id) or not await run_in_threadpool(use.store.exists, wish.file_id):
        raise _fault("input_reference/file_id", "there is no such file; upload it to /v1/assets/HASH first")
    return await run_in_threadpool(_named, use, wish.file_id)


def _chunks(file: UploadFile) -> Iterator[bytes]:
    while piece := file.file.read(2**20):
        yield piece


def _put(use: Services, pieces: Iterator[bytes]) -> _Reference:
    sha256, size = use.store.put_stream(pieces)
    with use.db.write() as conn:
        record_contents(conn, [(sha256, size)])
    return _named(use, sha256)


def _named(use: Services, sha256: str) -> _Reference:
    """Its place in the job, by its first bytes; names and types that people send say little."""
    with use.store.open(sha256, 0, 16) as reader:
        head = reader.read(16)
    field, suffix = next((found for magic, found in _SUFFIXES.items() if head.startswith(magic)), ("", ""))
    if head[4:8] == b"ftyp":
        field, suffix = "video", "mp4"
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        field, suffix = "image", "webp"
    if not field:
        raise _fault("input_reference", "this is no PNG, JPEG, WebP or TIFF picture, and no MP4 or MKV video")
    return _Reference(field, f"inputs/{field}.{suffix}", sha256)


def _submit(use: Services, asked: VideoCreate, reference: _Reference | None) -> Asked:
    spec = {key: value for key, value in asked.model_dump(exclude_unset=True).items() if key not in _OWN}
    if spec.get("model") is None:
        spec["model"] = _only_model(use)
    if asked.seconds is not None:
        spec["seconds"] = _seconds(asked.seconds)
    if asked.seed is not None:
        spec["seeds"] = [asked.seed]
    if spec.get("size") is None:
        spec.pop("size", None)
    assets: dict[str, str] = {}
    if reference is not None:
        if reference.field in spec:
            raise _fault("input_reference", f"{reference.field} is given twice")
        spec[reference.field] = reference.path
        assets[reference.path] = reference.sha256
    submit = JobSubmit(
        kind="video",
        name=asked.name or TITLE(asked.prompt),
        project=asked.project,
        priority=asked.priority,
        labels=asked.labels,
        spec=spec,
        assets=assets,
    )
    return Asked(submit, json.dumps(submit.model_dump(mode="json"), sort_keys=True).encode())


def _only_model(use: Services) -> str:
    with use.db.read() as conn:
        names = models.names(conn)
    if len(names) == 1:
        return names[0]
    known = f"this farm has {', '.join(names)}" if names else "this farm has no model yet"
    raise _fault("model", f"say which model; {known}")


def _seconds(value: str | float) -> float:
    try:
        return float(value)
    except ValueError:
        raise _fault("seconds", f"{str(value)[:20]!r} is no number of seconds, such as 5") from None


def _fault(field: str, message: str) -> InvalidInput:
    return InvalidInput(message, [FieldFault(f"/{field}" if field else "", message)])
