"""An exception that nobody foresaw becomes a 500 that tells its request id and nothing else."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import problems


class LastResort:
    """Stands inside the request id and the security headers, so that failures carry both."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except ClientDisconnect:
            return  # nobody is there to answer
        except Exception as error:
            answer = problems.of_exception(error, scope.get("state", {}).get("request_id"))
            if started:
                raise  # the server must cut the connection: a half answer must not look whole
            await answer(scope, receive, send)
