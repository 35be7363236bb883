"""Collecting what nothing refers to any more: contents in the store, and records past their keeping time.

Contents are kept while a row names them: a frame's file, an artifact, an asset of a job, a checkpoint of a
task or in a live buffer. What is young is spared whatever refers to it, because an upload or a frame is in
the store before its row is written. A content's row goes first, in a transaction that checks again, and then
its bytes; the store refuses to delete what was put again meanwhile.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from farm import events
from farm.db.connect import Database, db_now
from farm.db.tables import (
    artifacts,
    buffers,
    contents,
    frame_files,
    idempotency,
    job_assets,
    tasks,
    web_sessions,
)
from farm.errors import NotFound
from farm.settings import Settings
from farm.stores.base import Store

_BATCH: Final = 500


@dataclass(slots=True)
class GcReport:
    """What a collection removed, or would have. ``bytes`` counts contents only."""

    contents: int = 0
    bytes: int = 0
    strays: int = 0
    """Files in the store without a row: what fenced-off attempts and crashes left."""
    temporary: int = 0
    dry_run: bool = False


def collect(db: Database, store: Store, settings: Settings, dry_run: bool = False) -> GcReport:
    """Remove unreferenced contents that nobody has touched for ``gc_min_age_s``."""
    report = GcReport(dry_run=dry_run)
    _collect_rows(db, store, settings, report)
    _collect_strays(db, store, settings, report)
    if not dry_run:
        report.temporary = store.sweep(settings.gc_min_age_s)
    return report


def _collect_rows(db: Database, store: Store, settings: Settings, report: GcReport) -> None:
    last = ""
    while True:
        query = (
            sa.select(contents.c.sha256, contents.c.bytes)
            .where(contents.c.sha256 > last, *_unreferenced(settings.gc_min_age_s))
            .order_by(contents.c.sha256)
            .limit(_BATCH)
        )
        with db.read() as conn:
            found = conn.execute(query).all()
        if not found:
            return
        last = found[-1].sha256
        if report.dry_run:
            gone = {row.sha256 for row in found}
        else:
            with db.write() as conn:
                gone = _delete_rows(conn, [row.sha256 for row in found], settings.gc_min_age_s)
        for row in found:
            if row.sha256 in gone:
                report.contents += 1
                report.bytes += row.bytes
                if not report.dry_run:
                    store.delete(row.sha256, settings.gc_min_age_s)


def _delete_rows(conn: sa.Connection, hashes: list[str], min_age_s: float) -> set[str]:
    """Delete those of these contents that still are unreferenced; their hashes.

    Foreign keys catch a reference that appears at the same moment; then one at a time, so that one does not
    keep the others.
    """
    statement = contents.delete().where(*_unreferenced(min_age_s)).returning(contents.c.sha256)
    try:
        with conn.begin_nested():
            return set(conn.scalars(statement.where(contents.c.sha256.in_(hashes))))
    except sa.exc.IntegrityError:
        gone: set[str] = set()
        for sha256 in hashes:
            with contextlib.suppress(sa.exc.IntegrityError), conn.begin_nested():
                gone |= set(conn.scalars(statement.where(contents.c.sha256 == sha256)))
        return gone


def _collect_strays(db: Database, store: Store, settings: Settings, report: GcReport) -> None:
    batch: list[str] = []
    for sha256 in store.iter_hashes():
        batch.append(sha256)
        if len(batch) == _BATCH:
            _drop_strays(db, store, settings, report, batch)
            batch = []
    _drop_strays(db, store, settings, report, batch)


def _drop_strays(db: Database, store: Store, settings: Settings, report: GcReport, batch: list[str]) -> None:
    if not batch:
        return
    with db.read() as conn:
        known = set(conn.scalars(sa.select(contents.c.sha256).where(contents.c.sha256.in_(batch))))
        # checkpoints are named by tasks and buffers without a row of their own
        known |= set(conn.scalars(sa.select(tasks.c.checkpoint).where(tasks.c.checkpoint.in_(batch))))
        known |= set(conn.scalars(sa.select(buffers.c.sha256).where(buffers.c.sha256.in_(batch), _LIVE)))
    for sha256 in batch:
        if sha256 in known:
            continue
        try:
            size = store.size(sha256)
        except NotFound:
            continue
        if report.dry_run:
            if store.untouched(sha256, settings.gc_min_age_s):
                report.strays += 1
                report.bytes += size
        elif store.delete(sha256, settings.gc_min_age_s):
            report.strays += 1
            report.bytes += size


_LIVE = buffers.c.state != sa.literal_column("'released'")


def _unreferenced(min_age_s: float) -> list[sa.ColumnElement[bool]]:
    def named_by(column: sa.Column[Any]) -> sa.ColumnElement[bool]:
        return sa.exists(sa.select(1).where(column == contents.c.sha256))

    # these two have no index by hash: read once, not once for each content
    checkpoints = sa.select(tasks.c.checkpoint).where(tasks.c.checkpoint.is_not(None))
    held = sa.select(buffers.c.sha256).where(buffers.c.sha256.is_not(None), _LIVE)
    return [
        contents.c.touched_at < db_now() - min_age_s,
        ~named_by(frame_files.c.sha256),
        ~named_by(artifacts.c.sha256),
        ~named_by(job_assets.c.sha256),
        contents.c.sha256.not_in(checkpoints),
        contents.c.sha256.not_in(held),
    ]


def forget_old(conn: sa.Connection, settings: Settings) -> dict[str, int]:
    """Delete events, answers by Idempotency-Key and web sessions past their keeping time; how many each."""
    now: float = conn.scalars(sa.select(db_now())).one()
    old_answers = idempotency.delete().where(idempotency.c.created_at < now - settings.idempotency_keep_s)
    return {
        "events": events.forget_before(conn, now - settings.event_keep_s),
        "answers": conn.execute(old_answers).rowcount,
        "sessions": conn.execute(web_sessions.delete().where(web_sessions.c.expires_at < now)).rowcount,
    }
