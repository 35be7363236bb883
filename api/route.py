"""The route class of every endpoint: what is checked before an endpoint sees its request.

In this order: NUL characters and unknown or repeated query parameters are refused; the caller is
authenticated (before a byte of the body is read); the body's type is checked and its JSON read strictly;
for POST the Idempotency-Key is honoured. Then FastAPI takes over.
"""

from __future__ import annotations

import email.message
import types
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Union, get_args, get_origin

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.params import Form
from fastapi.routing import APIRoute
from pydantic import BaseModel

from api import auth, strict_json
from api.idempotent import answered_once
from api.problems import HttpProblem, invalid_parameter

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PublicRoute(APIRoute):
    """A route that needs no key (health, login)."""

    authenticated: ClassVar[bool] = False
    streams_body: ClassVar[bool] = False

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()
        known = _query_parameters(self)

        async def checked(request: Request) -> Response:
            _check_path(request)
            _check_query(request, known)
            if self.authenticated:
                request.state.principal = await run_in_threadpool(auth.authenticate, request)
            if self.streams_body:
                return await handle(request)
            await _check_body(self, request)
            key = request.headers.get("idempotency-key")
            if request.method == "POST" and key is not None and self.authenticated:
                return await answered_once(request, key, lambda: handle(request))
            return await handle(request)

        return checked


class FarmRoute(PublicRoute):
    """A route that needs a key or a session."""

    authenticated = True


class StreamRoute(FarmRoute):
    """A route whose body is streamed by the endpoint itself (uploads)."""

    streams_body = True


def _query_parameters(route: APIRoute) -> dict[str, bool]:
    """Names of the query parameters, and whether each may be given more than once."""
    known: dict[str, bool] = {}
    for field in route.dependant.query_params:
        annotation = field.field_info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            for name, info in annotation.model_fields.items():
                known[info.alias or name] = _is_list(info.annotation)
        else:
            known[field.alias] = _is_list(annotation)
    return known


def _is_list(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return any(_is_list(arg) for arg in get_args(annotation))
    return origin is list or annotation is list


def _check_path(request: Request) -> None:
    for name, value in request.path_params.items():
        if "\0" in str(value) or "�" in str(value):
            raise HttpProblem(404, "not-found", f"there is no {name} with such a name")


def _check_query(request: Request, known: dict[str, bool]) -> None:
    seen: set[str] = set()
    for name, value in request.query_params.multi_items():
        if name not in known:
            takes = f"; this takes {', '.join(sorted(known))}" if known else "; this takes none"
            raise invalid_parameter("query", name[:80], f"there is no query parameter {name[:80]!r}{takes}")
        if name in seen and not known[name]:
            raise invalid_parameter("query", name, f"the query parameter {name!r} is given twice")
        if "\0" in value:
            raise invalid_parameter("query", name, f"{name} may not hold a NUL character")
        seen.add(name)


async def _check_body(route: APIRoute, request: Request) -> None:
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return
    body = await request.body()
    if route.body_field is None:
        if body.strip() not in (b"", b"{}"):
            raise HttpProblem(
                422,
                "invalid-input",
                f"{request.method} {request.url.path} takes no body",
                faults=[{"in": "body", "pointer": "", "message": "this request takes no body"}],
            )
        return
    if isinstance(route.body_field.field_info, Form) or not body:
        return
    message = email.message.Message()
    message["content-type"] = request.headers.get("content-type", "")
    subtype = message.get_content_subtype()
    if message.get_content_maintype() != "application" or not (
        subtype == "json" or subtype.endswith("+json")
    ):
        raise HttpProblem(
            415, "unsupported-media-type", "send the body as JSON: Content-Type: application/json"
        )
    strict_json.parse(body)
