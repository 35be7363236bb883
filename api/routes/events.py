"""The event log, live: server-sent events out of the table, resumed by Last-Event-ID."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated, Any

import sqlalchemy as sa
import structlog
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from api import sse, visible
from api.auth import Principal, Reader
from api.models.common import rfc3339
from api.problems import invalid_parameter
from api.route import FarmRoute
from api.routes.logs import RECHECK_S, Stream, still_allowed
from api.services import Services, Use
from farm import events
from farm.events import EventFilter, EventRow

router = APIRouter(prefix="/v1", route_class=FarmRoute)
log = structlog.get_logger(__name__)

BATCH = 200
COALESCE_S = 0.02
AWAY_S = 1.0

Types = Annotated[
    list[Annotated[str, Query(max_length=60)]],
    Query(alias="type", max_length=20, description="Only these, such as `job.state` or `frame.*`"),
]


@router.get("/events", tags=["events"], responses=Stream, response_class=Response)
async def follow_events(
    request: Request,
    use: Use,
    who: Reader,
    job: Annotated[str | None, Query(max_length=48, description="Only events of this job")] = None,
    node: Annotated[str | None, Query(max_length=200, description="Only events of this node")] = None,
    type: Types = [],  # noqa: B006 - FastAPI copies defaults
    after: Annotated[
        int | None, Query(ge=0, le=2**62, description="Like Last-Event-ID, for a first connection")
    ] = None,
    last_event_id: Annotated[
        str | None, Header(description="Go on after this event; 0: from the first")
    ] = None,
) -> Response:
    """What happens, as it happens; without Last-Event-ID from now on.

    A message's event name is the type, its id the event's, its data `{at, project_id, job_id, step_id,
    task_id, slot_id, node_id, data}`. A comment comes every 15 s when nothing else does. The message `gap`
    comes first where events after Last-Event-ID are not kept any more: read what you show anew.
    """
    start = after
    if last_event_id is not None:
        if not last_event_id.isdigit() or int(last_event_id) > 2**62:
            raise invalid_parameter("header", "Last-Event-ID", f"{last_event_id[:40]!r} is no event's id")
        start = int(last_event_id)

    def begin() -> tuple[int, EventFilter, bool]:
        with use.db.read() as conn:
            if job is not None:
                visible.job(conn, who, job)
            node_id = visible.node(conn, node)["id"] if node is not None else None
            where = EventFilter(project_id=who.project_id, job_id=job, node_id=node_id, types=tuple(type))
            if start is None:
                return events.newest_id(conn), where, False
            return start, where, events.forgotten_after(conn, start)

    last, where, gap = await run_in_threadpool(begin)
    messages = _follow(request, use, who, last, where, gap)
    return sse.stream(use.feed.admit(who.key_id, use.settings.max_streams, messages))


async def _follow(
    request: Request, use: Services, who: Principal, last: int, where: EventFilter, gap: bool
) -> AsyncGenerator[bytes]:
    feed = use.feed
    quiet_since = checked = time.monotonic()
    yield sse.RETRY + sse.HEARTBEAT
    if gap:
        yield sse.message(
            {"after": last, "detail": "events after this one are not kept any more"}, event="gap"
        )
    while not feed.closing:
        try:
            found, last = await feed.read(partial(_read, use, last, where))
        except sa.exc.OperationalError as error:
            log.warning("event stream cannot read", error=str(error).splitlines()[0])
            await feed.wait(AWAY_S)
            continue
        for event in found:
            yield _message(event)
        now = time.monotonic()
        if found:
            quiet_since = now
        elif now - quiet_since >= sse.HEARTBEAT_S:
            quiet_since = now
            yield sse.HEARTBEAT
        if now - checked >= RECHECK_S:
            checked = now
            if not await still_allowed(request, use):
                return
        if len(found) < BATCH:
            await feed.wait(1.0)
            # many commits in a burst are read together
            await feed.pause(COALESCE_S)


def _read(use: Services, last: int, where: EventFilter) -> tuple[list[EventRow], int]:
    with use.db.read() as conn:
        # taken before the read: where nothing matched, everything up to here has been looked at
        newest = events.newest_id(conn)
        found = events.read_after(conn, last, BATCH, where)
    if found:
        return found, found[-1].id
    return found, newest or last


def _message(event: EventRow) -> bytes:
    body: dict[str, Any] = {
        "at": rfc3339(event.at),
        "project_id": event.project_id,
        "job_id": event.job_id,
        "step_id": event.step_id,
        "task_id": event.task_id,
        "slot_id": event.slot_id,
        "node_id": event.node_id,
        "data": event.data,
    }
    return sse.message(body, event=event.type, id=event.id)
