"""From a problem+json answer back to the error of :mod:`farm.errors` that the farm raised."""

from __future__ import annotations

from collections.abc import Iterator

import httpx

from farm import errors
from farm.errors import FarmError, FieldFault, InvalidFrameRange, InvalidInput

_BY_STATUS: dict[int, type[FarmError]] = {
    401: errors.Unauthenticated,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    412: errors.PreconditionFailed,
    413: errors.TooLarge,
    422: InvalidInput,
    503: errors.Unavailable,
    507: errors.OutOfSpace,
}


def _tree(root: type[FarmError]) -> Iterator[type[FarmError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


def to_error(response: httpx.Response) -> FarmError:
    """The error that an answer with status 400 or above stands for.

    The stable last part of the problem's ``type`` picks the class; without one the status does.
    """
    try:
        body = response.json()
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    slug = str(body.get("type", "")).rstrip("/").rsplit("/", 1)[-1].rsplit(":", 1)[-1]
    detail = str(body.get("detail") or body.get("title") or "").strip()
    if not detail:
        detail = f"{response.request.method} {response.request.url.path} answered {response.status_code}"
    faults = [
        FieldFault(str(item.get("pointer", "")), str(item.get("message") or item.get("detail") or ""))
        for item in body.get("errors", [])
        if isinstance(item, dict)
    ]
    kind = next((cls for cls in _tree(FarmError) if cls.slug == slug), None)
    kind = kind or _BY_STATUS.get(response.status_code, FarmError)
    if issubclass(kind, InvalidFrameRange):
        error = InvalidFrameRange(detail, int(body.get("position") or 0))
        error.faults = faults or error.faults
        return error
    if issubclass(kind, InvalidInput):
        return kind(detail, faults)
    return kind(detail)
