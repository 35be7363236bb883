"""The size limit of request bodies, counted while they stream in."""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import problems


def too_large(limit: int) -> problems.HttpProblem:
    """The 413 of a body over ``limit`` bytes."""
    return problems.HttpProblem(413, "too-large", f"the body is over the limit of {limit:,} bytes")


class BodyLimit:
    """Refuses bodies over a limit: at once by Content-Length, else at the byte that passes it.

    ``limit_of(method, path)`` gives the limit in bytes.
    """

    def __init__(self, app: ASGIApp, limit_of: Callable[[str, str], int]) -> None:
        self.app = app
        self.limit_of = limit_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.limit_of(scope["method"], scope["path"])
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            problem = too_large(limit)
            answer = problems.response(
                413,
                problem.slug,
                problem.detail,
                request_id=scope.get("state", {}).get("request_id"),
                headers={"Connection": "close"},
            )
            await answer(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > limit:
                    raise too_large(limit)
            return message

        await self.app(scope, counted, send)
