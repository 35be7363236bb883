"""Errors as ``application/problem+json`` (RFC 9457): the one place that maps the error tree to HTTP.

Every error body has ``type`` (``urn:stillframe:problem:<slug>``, stable), ``title``, ``status``, ``detail``,
``request_id`` and, where fields are at fault, ``errors``: a list of ``{in, pointer, message}``. ``in`` says
where the field stands (body, query, path, header, form) and ``pointer`` is a JSON pointer inside it.
"""

from __future__ import annotations

import http
import re
import traceback
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from farm.errors import FarmError, InvalidInput, OutOfSpace, StillAnswering, Unavailable

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:stillframe:problem:"

log = structlog.get_logger(__name__)


class Fault(BaseModel):
    """One bad field of a request."""

    place: str = Field(default="body", alias="in", description="body, query, path, header or form")
    pointer: str = Field(description="JSON pointer to the field", examples=["/spec/frames"])
    message: str = Field(description="What is wrong with it, and what would be right")


class OpenAiError(BaseModel):
    """The same error where OpenAI's clients look for it."""

    message: str
    type: str
    param: str | None = Field(description="The first bad field")
    code: str


class Problem(BaseModel):
    """An error, for people and programs."""

    type: str = Field(examples=["urn:stillframe:problem:invalid-frame-range"])
    title: str = Field(examples=["The frame range cannot be read"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["frame range '5-1': the end 1 comes before the start 5 at position 2"])
    request_id: str | None = None
    errors: list[Fault] | None = None
    position: int | None = Field(default=None, description="0-based position of the fault in a frame range")
    error: OpenAiError | None = Field(default=None, description="Only below /v1/videos")


class HttpProblem(HTTPException):
    """An HTTP-level error that the farm's own error tree has no word for (405, 415, 421, 428…)."""

    def __init__(
        self,
        status: int,
        slug: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        faults: Sequence[Mapping[str, str]] = (),
    ) -> None:
        super().__init__(status_code=status, detail=detail, headers=headers)
        self.slug = slug
        self.faults = list(faults)


def invalid_parameter(place: str, name: str, message: str) -> HttpProblem:
    """A 422 for one query parameter, path segment or header."""
    fault = {"in": place, "pointer": f"/{escape(name)}", "message": message}
    return HttpProblem(422, "invalid-input", message, faults=[fault])


def escape(part: object) -> str:
    """One segment of a JSON pointer (RFC 6901)."""
    return str(part).replace("~", "~0").replace("/", "~1")


def response(
    status: int,
    slug: str,
    detail: str,
    *,
    title: str | None = None,
    request_id: str | None = None,
    faults: Sequence[Mapping[str, str]] = (),
    headers: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> JSONResponse:
    """A problem document as a response."""
    body: dict[str, Any] = {
        "type": TYPE_PREFIX + slug,
        "title": title or _titles().get(slug) or _phrase(status),
        "status": status,
        "detail": detail,
    }
    if request_id:
        body["request_id"] = request_id
    if faults:
        body["errors"] = [dict(fault) for fault in faults]
    body |= extra or {}
    return JSONResponse(body, status_code=status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Make every exception of the application a problem document."""
    app.add_exception_handler(FarmError, _farm_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    for away in (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError):
        app.add_exception_handler(away, _database_away)


def of_exception(error: Exception, request_id: str | None) -> JSONResponse:
    """The problem document of an exception that reached nobody: says nothing of its inside."""
    # as text: renderers that show local variables would write keys into the log
    trace = "".join(traceback.format_exception(error))
    log.error("request failed", request_id=request_id, trace=trace)
    return response(
        500,
        "internal-error",
        f"the farm failed at this request; its log has the reason under request id {request_id}",
        request_id=request_id,
    )


def _for_openai(
    request: Request, slug: str, detail: str, faults: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """The member in which OpenAI's clients find an error's message, for the routes that they call."""
    if not request.url.path.startswith("/v1/videos"):
        return {}
    param = faults[0]["pointer"].strip("/").replace("/", ".") if faults else None
    return {"error": {"message": detail, "type": slug, "param": param or None, "code": slug}}


def _request_id(request: Request) -> str | None:
    found = request.scope.get("state", {}).get("request_id")
    return str(found) if found else None


async def _farm_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, FarmError)
    faults: list[dict[str, str]] = []
    if isinstance(error, InvalidInput):
        faults = [{"in": "body", "pointer": f.pointer, "message": f.message} for f in error.faults]
    position = getattr(error, "position", None)
    headers = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="stillframe"'
    if isinstance(error, Unavailable) and not isinstance(error, OutOfSpace):
        headers["Retry-After"] = "2"
    if isinstance(error, StillAnswering):
        headers["Retry-After"] = "1"
    if error.status >= 500:
        log.warning("request refused", slug=error.slug, detail=error.message, request_id=_request_id(request))
    return response(
        error.status,
        error.slug,
        error.message,
        title=error.title,
        request_id=_request_id(request),
        faults=faults,
        headers=headers,
        extra={
            **({"position": position} if position is not None else {}),
            **_for_openai(request, error.slug, error.message, faults),
        },
    )


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    slug, detail = _slug(error.status_code), str(error.detail)
    faults: list[Mapping[str, str]] = []
    headers = dict(error.headers or {})
    if isinstance(error, HttpProblem):
        slug, faults = error.slug, error.faults
    elif error.status_code == 404:
        detail = f"there is nothing at {request.url.path}"
    elif error.status_code == 405:
        # the router names one route's methods, but several may share a path
        table: list[tuple[re.Pattern[str], set[str]]] = getattr(request.app.state, "paths", [])
        known = {m for path, methods in table if path.match(request.url.path) for m in methods}
        allowed = ", ".join(sorted(known)) or (error.headers or {}).get("Allow", "")
        headers["Allow"] = allowed
        detail = f"{request.method} is not possible here; {request.url.path} takes {allowed}"
    return response(
        error.status_code,
        slug,
        detail,
        request_id=_request_id(request),
        faults=faults,
        headers=headers,
        extra=_for_openai(request, slug, detail, faults),
    )


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    faults = [_fault(item, request) for item in error.errors()]
    detail = "; ".join(f"{fault['pointer'] or fault['in']}: {fault['message']}" for fault in faults[:5])
    return response(
        422,
        "invalid-input",
        detail,
        title=InvalidInput.title,
        request_id=_request_id(request),
        faults=faults,
        extra=_for_openai(request, "invalid-input", detail, faults),
    )


async def _database_away(request: Request, error: Exception) -> JSONResponse:
    reason = str(error).splitlines()[0]
    if "disk is full" in reason or "No space left" in reason:
        full = "the disk of the database is full; nothing was changed: free some space, or run `farm gc`"
        return await _farm_error(request, OutOfSpace(full))
    if "no such column" in reason or "no such table" in reason:
        # SQLite says so in the same words as of a database that is away, but waiting does not help
        return of_exception(error, _request_id(request))
    log.warning("database away", request_id=_request_id(request), error=reason)
    return response(
        503,
        Unavailable.slug,
        "the farm's database cannot be reached; nothing was changed, try again in a moment",
        title=Unavailable.title,
        request_id=_request_id(request),
        headers={"Retry-After": "2"},
    )


def _fault(item: Mapping[str, Any], request: Request) -> dict[str, str]:
    place, *path = item["loc"] or ("body",)
    message = str(item["msg"]).removeprefix("Value error, ")
    value = item.get("input")
    kind = item["type"]
    if kind == "extra_forbidden":
        message = "there is no such field" + _known_fields(request, path)
    elif kind == "json_invalid":
        path, message = [], f"this is not JSON: {item.get('ctx', {}).get('error', message)}"
    elif kind == "missing":
        message = "this field is required"
    elif not isinstance(value, dict | list | bytes) and kind != "value_error":
        message = f"{message} (got {str(value)[:100]!r})"
    if path and path[-1] == "[key]":
        path, message = path[:-1], f"a name in it is not allowed: {message}"
    pointer = "".join(f"/{escape(part)}" for part in path)
    return {"in": str(place), "pointer": pointer, "message": message}


def _known_fields(request: Request, path: Sequence[object]) -> str:
    field = getattr(request.scope.get("route"), "body_field", None)
    model = getattr(getattr(field, "field_info", None), "annotation", None)
    if len(path) == 1 and isinstance(model, type) and issubclass(model, BaseModel):
        names = ", ".join(info.alias or name for name, info in model.model_fields.items())
        return f"; this request takes {names}"
    return ""


@lru_cache(maxsize=1)
def _titles() -> dict[str, str]:
    """Titles of the error tree by slug, so that one slug has one title wherever it is raised."""
    found: dict[str, str] = {}
    waiting: list[type[FarmError]] = [FarmError]
    while waiting:
        kind = waiting.pop()
        found.setdefault(kind.slug, kind.title)
        waiting += kind.__subclasses__()
    return found


def _phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _slug(status: int) -> str:
    return _phrase(status).lower().replace(" ", "-").replace("'", "")
