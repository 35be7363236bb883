"""Idempotency-Key on POST: the same request sent again gets the same answer, marked as replayed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import sqlalchemy as sa
import structlog
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from api.services import Services, services_in
from farm import idempotency
from farm.errors import StillAnswering
from farm.idempotency import Claim, KeptAnswer

log = structlog.get_logger(__name__)

REPLAYED = "Idempotency-Replayed"
_KEPT_HEADERS = ("location", "etag")
_ONCE_FIELDS = {"/v1/keys": ("secret",)}
"""Fields that are shown once: a replayed answer has null there, so that no secret is ever kept."""


async def answered_once(
    request: Request, key: str, answer: Callable[[], Awaitable[Response]], body: bytes | None = None
) -> Response:
    """The answer of ``answer``, or the one that this request got before.

    Only successful answers are kept. Raises :class:`farm.errors.IdempotencyMismatch` and
    :class:`farm.errors.StillAnswering`.
    """
    services = services_in(request)
    fingerprint = await request.body() if body is None else body
    query = request.url.query
    claim = Claim(
        key_id=request.state.principal.key_id,
        idempotency_key=key,
        method=request.method,
        path=request.url.path + (f"?{query}" if query else ""),
        body_sha256=hashlib.sha256(fingerprint).hexdigest(),
    )
    kept = await run_in_threadpool(_begin, services, claim)
    if kept is not None:
        return _replay(kept)
    request.state.claim = claim
    request.state.answer_kept = False
    done = False
    renewing = asyncio.create_task(_renew_on(services, claim))
    try:
        response = await answer()
        done = 200 <= response.status_code < 300
        if done and not request.state.answer_kept:
            await run_in_threadpool(_keep, services, claim, _to_keep(request.url.path, response))
        return response
    finally:
        renewing.cancel()
        if not done:
            await run_in_threadpool(_release, services, claim)


async def answered_once_as(
    request: Request, fingerprint: bytes, answer: Callable[[], Awaitable[BaseModel]]
) -> Any:
    """The same for an endpoint that read its body itself; ``fingerprint`` stands for what was in it."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return await answer()

    async def respond() -> Response:
        return JSONResponse((await answer()).model_dump(mode="json"), status_code=201)

    return await answered_once(request, key, respond, fingerprint)


def keep_answer(
    request: Request, conn: sa.Connection, status: int, answer: BaseModel, headers: Mapping[str, str]
) -> None:
    """Keep an answer in the transaction that does the work; does nothing without an Idempotency-Key."""
    claim: Claim | None = getattr(request.state, "claim", None)
    if claim is None:
        return
    body = answer.model_dump(mode="json", by_alias=True)
    idempotency.keep(conn, claim, status, {"body": body, "headers": dict(headers)})
    request.state.answer_kept = True


def _begin(services: Services, claim: Claim) -> KeptAnswer | None:
    with services.db.write() as conn:
        return idempotency.begin(conn, claim, services.settings.idempotency_keep_s)


async def _renew_on(services: Services, claim: Claim) -> None:
    """Renew the claim until cancelled; a database that is away is tried again."""
    while True:
        await asyncio.sleep(idempotency.RENEW_S)
        try:
            await run_in_threadpool(_renew, services, claim)
        except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError) as error:
            log.warning("claim not renewed", path=claim.path, error=str(error).splitlines()[0])


def _renew(services: Services, claim: Claim) -> None:
    with services.db.write() as conn:
        idempotency.renew(conn, claim)


def _keep(services: Services, claim: Claim, answer: tuple[int, dict[str, Any]]) -> None:
    # what was done is committed, so its answer stands whoever has the claim now
    with contextlib.suppress(StillAnswering), services.db.write() as conn:
        idempotency.keep(conn, claim, *answer)


def _release(services: Services, claim: Claim) -> None:
    with services.db.write() as conn:
        idempotency.release(conn, claim)


def _to_keep(path: str, response: Response) -> tuple[int, dict[str, Any]]:
    body = json.loads(bytes(response.body)) if response.body else None
    for name in _ONCE_FIELDS.get(path, ()):
        if isinstance(body, dict):
            body[name] = None
    headers = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
    return response.status_code, {"body": body, "headers": headers}


def _replay(kept: KeptAnswer) -> Response:
    headers = {**kept.response["headers"], REPLAYED: "true"}
    if kept.response["body"] is None:
        return Response(status_code=kept.status, headers=headers)
    return JSONResponse(kept.response["body"], status_code=kept.status, headers=headers)
