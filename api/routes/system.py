"""Health, readiness, metrics, kinds and the collection of unreferenced contents."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from api.auth import Admin, Anyone, Reader
from api.health import ReadinessProbe
from api.models.common import Page
from api.models.upkeep import Collect, Collected, KindInfo, Readiness
from api.route import FarmRoute, PublicRoute
from api.services import Use
from farm import gc
from jobs import registry

public = APIRouter(route_class=PublicRoute)
router = APIRouter(route_class=FarmRoute)

_NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": Readiness, "description": "Not ready"}}
_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@public.get("/healthz", tags=["system"])
async def health() -> dict[str, str]:
    """Whether the process answers at all."""
    return {"status": "alive"}


@public.get("/readyz", tags=["system"], response_model=Readiness, responses=_NOT_READY)
def ready(request: Request, use: Use) -> Response:
    """Whether database, broker and store can be used; 503 names the one that cannot."""
    probe: ReadinessProbe = request.app.state.readiness
    found = probe.look(use)
    return JSONResponse(found.model_dump(mode="json"), status_code=200 if found.status == "ready" else 503)


@router.get("/metrics", tags=["system"], response_class=Response, responses=_TEXT)
async def metrics(request: Request, who: Reader) -> Response:
    """Figures for Prometheus; needs a key that sees the whole farm."""
    who.require_whole_farm("reading the metrics")
    registry_: CollectorRegistry = request.app.state.metrics
    return Response(await run_in_threadpool(generate_latest, registry_), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/kinds", tags=["system"])
def list_kinds(who: Anyone) -> Page[KindInfo]:
    """The kinds of jobs that this farm knows, with the JSON schemas of their specs."""
    items = [
        KindInfo(name=name, spec_schema=kind.spec_model().model_json_schema())
        for name, kind in sorted(registry.kinds().items())
    ]
    return Page[KindInfo](items=items, next=None)


@router.post("/v1/gc", tags=["system"])
def collect(body: Collect, use: Use, who: Admin) -> Collected:
    """Remove contents that nothing refers to and that are old enough; `dry_run` only counts them."""
    who.require_whole_farm("collecting contents")
    return Collected.model_validate(gc.collect(use.db, use.store, use.settings, body.dry_run))
