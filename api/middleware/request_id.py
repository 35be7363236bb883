"""``X-Request-Id``: taken from the caller where it is harmless, else made; given back and logged."""

from __future__ import annotations

import re

import structlog
import uuid_utils
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HARMLESS = re.compile(r"^[A-Za-z0-9._:-]{1,100}$")


class RequestId:
    """Names each request in its response, in its error document and in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _HARMLESS.match(given) else f"req_{uuid_utils.uuid7().hex}"
        scope.setdefault("state", {})["request_id"] = request_id

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self.app(scope, receive, named)
