"""How long requests take, by route, for Prometheus."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Timing:
    """Observes the time to the first byte of each response (streams would else count for hours)."""

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self.app = app
        self.seconds = Histogram(
            "stillframe_http_request_seconds",
            "Time to the first byte of a response",
            ["method", "route", "status"],
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()

        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                # the template, never the path: ids would make a series each
                route = getattr(scope.get("route"), "path", "none")
                method = scope["method"] if scope["method"] in _METHODS else "other"
                self.seconds.labels(method, route, str(message["status"])).observe(
                    time.perf_counter() - began
                )
            await send(message)

        await self.app(scope, receive, timed)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
