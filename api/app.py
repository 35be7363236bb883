"""The application factory: one FastAPI application over a database, a store and the broker's wakes."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry

from api import problems
from api.health import ReadinessProbe
from api.live import LiveFeed
from api.metrics import FarmCollector
from api.middleware.body_limit import BodyLimit
from api.middleware.hosts import HostCheck, allowed_hosts
from api.middleware.last_resort import LastResort
from api.middleware.request_id import RequestId
from api.middleware.security_headers import SecurityHeaders
from api.middleware.timing import Timing
from api.routes import (
    artifacts,
    assets,
    events,
    frames,
    guard,
    jobs,
    logs,
    machines,
    models,
    people,
    session,
    stillness,
    system,
    videos,
    work,
)
from api.services import Services, Waker
from farm.db.connect import Database
from farm.keyring import Keyring
from farm.settings import Settings
from farm.stores import Store

log = structlog.get_logger(__name__)

DESCRIPTION = """A render farm for GPU machines that also serve language models.

Send a key as `Authorization: Bearer KEY`. Errors are `application/problem+json` with a stable `type`; lists
are read page by page with the opaque `cursor`; a POST with an `Idempotency-Key` may be sent again. Times are
UTC (RFC 3339), sizes bytes, durations seconds, frame ranges like `1-100:2,200`."""


def create_app(settings: Settings, db: Database, store: Store, wakes: Waker) -> FastAPI:
    """The REST API, with the dashboard's pages where they are installed.

    The caller owns ``db``, ``store`` and ``wakes`` and closes them after the application.
    """
    feed = LiveFeed(wakes)
    services = Services(settings, db, store, wakes, feed, Keyring.open(settings))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        feed.start()
        try:
            yield
        finally:
            feed.close()

    app = FastAPI(
        title="Stillframe",
        version="1",
        description=DESCRIPTION,
        lifespan=lifespan,
        # the interactive pages load scripts from another origin
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        generate_unique_id_function=_operation_id,
        responses=_errors(),
        redirect_slashes=False,
    )
    app.state.services = services
    app.state.readiness = ReadinessProbe()
    app.state.metrics = CollectorRegistry()
    FarmCollector(db, app.state.metrics)
    problems.install(app)
    app.state.paths = []
    for router in (
        system.public, system.router, session.login, session.router, jobs.router, work.router, frames.router,
        logs.router, assets.router, assets.streams, artifacts.router, machines.router, guard.router,
        stillness.router,
        people.router, events.router, models.router,
        videos.router, videos.streams,
    ):  # fmt: skip
        app.include_router(router)
        app.state.paths += [
            (route.path_regex, set(route.methods or ()))
            for route in router.routes
            if isinstance(route, APIRoute)
        ]
    _mount_pages(app)
    # the last one added stands outermost
    app.add_middleware(BodyLimit, limit_of=_limit_of(settings))
    app.add_middleware(HostCheck, allowed=allowed_hosts(settings))
    app.add_middleware(Timing, registry=app.state.metrics)
    app.add_middleware(LastResort)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(RequestId)
    return app


def _mount_pages(app: FastAPI) -> None:
    try:
        pages = importlib.import_module("api.web.routes")
    except ModuleNotFoundError as error:
        if error.name not in ("api.web", "api.web.routes"):
            raise
        log.info("the dashboard is not installed; serving the API alone")
        return
    app.include_router(pages.router)


def _limit_of(settings: Settings) -> Any:
    def limit(method: str, path: str) -> int:
        upload = (method == "PUT" and path.startswith("/v1/assets/")) or (
            method == "POST" and path == "/v1/assets"
        )
        return settings.max_upload if upload else settings.max_body

    return limit


def _operation_id(route: APIRoute) -> str:
    return route.name


def _errors() -> dict[int | str, dict[str, Any]]:
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {"default": {"description": "A problem", "model": problems.Problem, "content": content}}
