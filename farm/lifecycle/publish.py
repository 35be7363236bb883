"""Frames become published: pending -> published, once, with their files, by the attempt that holds the task.

A published frame never changes: publishing it again does nothing. Files are in the store before their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from farm import events
from farm.db.connect import db_now
from farm.db.rows import clean_json, dumps, insert_missing_for, json_table
from farm.db.tables import contents, frame_files, frames, steps
from farm.lifecycle.counters import Moves, apply_to_jobs, apply_to_steps
from farm.lifecycle.task_rows import TaskRow, read_tasks
from farm.records import FrameRecord
from farm.states import TaskState

_TOUCH_EVERY_S = 3600.0
_BATCH = 500


def publish_frames(
    conn: sa.Connection, task_id: str, epoch: int, attempt_id: str, records: Sequence[FrameRecord]
) -> bool:
    """Record verified frames of a running attempt; False when its epoch is over and nothing was recorded.

    A frame that lacks an output that its step declares stays pending. Frames of other tasks are ignored.
    """
    task = read_tasks(conn, [task_id]).get(task_id)
    if task is None or task.state != TaskState.RUNNING or task.epoch != epoch:
        return False
    moves = Moves()
    put_frames(conn, [(task, attempt_id, record) for record in records], moves)
    apply_to_steps(conn, moves)
    apply_to_jobs(conn, moves)
    return True


def record_contents(conn: sa.Connection, items: Iterable[tuple[str, int]]) -> None:
    """Note that the store holds these contents, ``(sha256, bytes)`` each, and that they are wanted."""
    sizes = dict(items)
    if not sizes:
        return
    rows = [{"sha256": sha256, "bytes": sizes[sha256]} for sha256 in sorted(sizes)]
    made = conn.scalars(_contents_statement(conn.dialect.name), {"content_rows": dumps(rows)})
    known = set(sizes) - set(made)
    if known:
        # a row that is there stays unlocked unless it is old: many slots publish the same black frame
        conn.execute(
            contents.update()
            .values(touched_at=db_now())
            .where(contents.c.sha256.in_(sorted(known)), contents.c.touched_at < db_now() - _TOUCH_EVERY_S)
        )


@lru_cache
def _contents_statement(dialect: str) -> Any:
    rows = json_table(dialect, "content", {"sha256": "text", "bytes": "int"})
    selected = sa.select(rows.c.sha256, rows.c.bytes, db_now(), db_now()).order_by(rows.c.sha256)
    names = ["sha256", "bytes", "created_at", "touched_at"]
    # WHERE, because SQLite reads ON CONFLICT after a bare FROM as part of a join
    insert = insert_missing_for(dialect, contents).from_select(names, selected.where(sa.text("1 = 1")))
    return insert.returning(contents.c.sha256)


def put_frames(conn: sa.Connection, items: Sequence[tuple[TaskRow, str, FrameRecord]], moves: Moves) -> None:
    """Publish frames of locked, running tasks of one step: ``(task, attempt_id, frame)`` each."""
    items = [item for item in items if item[0].take == item[2].take]
    if not items:
        return
    step_id = items[0][0].step_id
    declared = _declared(conn, step_id)
    items = [item for item in items if declared <= {file.output for file in item[2].files}]
    record_contents(conn, ((file.sha256, file.bytes) for _, _, frame in items for file in frame.files))
    rows = [
        {
            "step_id": step_id,
            "task_id": task.id,
            "attempt_id": attempt_id,
            "take": frame.take,
            "number": frame.number,
            "started_at": clean_json(frame.started_at),
            "duration_s": clean_json(frame.duration_s),
            "peak_vram": frame.peak_vram,
            "quality": clean_json(frame.quality),
        }
        for task, attempt_id, frame in items
    ]
    published = conn.execute(_publish_statement(conn.dialect.name), {"new_rows": dumps(rows)}).all()
    fresh = {(take, number) for take, number in published}
    if not fresh:
        return
    files = [
        asdict(file) | {"step_id": step_id, "take": frame.take, "number": frame.number}
        for _, _, frame in items
        if (frame.take, frame.number) in fresh
        for file in frame.files
        if file.output in declared
    ]
    # the same frame twice in one call: the first one counts
    unique: dict[tuple[int, int, str], dict[str, Any]] = {}
    for file in files:
        unique.setdefault((file["take"], file["number"], file["output"]), file)
    if unique:
        conn.execute(frame_files.insert(), list(unique.values()))
    moves.frames_done[step_id] += len(fresh)
    for take in sorted({take for take, _ in fresh}):
        numbers = sorted(number for t, number in fresh if t == take)
        if take > 1:
            make_current(conn, step_id, take, numbers)
        events.emit(
            conn,
            "frame.published",
            job_id=items[0][0].job_id,
            step_id=step_id,
            data={"take": take, "numbers": numbers},
        )


@lru_cache
def _publish_statement(dialect: str) -> Any:
    written = {
        "attempt_id": "text", "started_at": "float", "duration_s": "float", "peak_vram": "int",
        "quality": "json",
    }  # fmt: skip
    keys = {"step_id": "text", "task_id": "text", "take": "int", "number": "int"}
    rows = json_table(dialect, "new", keys | written)
    return (
        frames.update()
        .values({name: rows.c[name] for name in written} | {"state": "published", "published_at": db_now()})
        .where(*(frames.c[name] == rows.c[name] for name in keys), frames.c.state == "pending")
        .returning(frames.c.take, frames.c.number)
    )


def make_current(conn: sa.Connection, step_id: str, take: int, numbers: Sequence[int]) -> None:
    """Make this take the current one of these frame numbers."""
    for start in range(0, len(numbers), _BATCH):
        conn.execute(
            frames.update()
            .values(is_current=frames.c.take == take)
            .where(frames.c.step_id == step_id, frames.c.number.in_(numbers[start : start + _BATCH]))
        )


def missing_frames(conn: sa.Connection, task_ids: Sequence[str]) -> dict[str, int]:
    """How many frames of each task are not published yet; tasks without any are left out."""
    query = (
        sa.select(frames.c.task_id, sa.func.count())
        .where(frames.c.task_id.in_(list(task_ids)), frames.c.state == "pending")
        .group_by(frames.c.task_id)
    )
    return dict(conn.execute(query).all())


def _declared(conn: sa.Connection, step_id: str) -> set[str]:
    outputs = conn.scalar(sa.select(steps.c.outputs).where(steps.c.id == step_id)) or []
    return {output["name"] for output in outputs}
