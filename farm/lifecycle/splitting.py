"""The rest of a chunk goes on as new tasks of the same step, in the transaction that makes the chunk done.

The task keeps the frames that are published. Each part is like it (take, rank, payload, retries and losses
spent so far, what it waited for) and ready at once; what waits for the task's frames waits for the parts that
make them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from farm import events
from farm.chunks import OVER_PLAN, chunk_size
from farm.db.rows import json_rows, lock
from farm.db.tables import frames, task_dependencies, tasks
from farm.frame_index import FrameIndex
from farm.frame_range import FrameRange
from farm.ids import new_id
from farm.lifecycle.counters import Moves
from farm.lifecycle.task_rows import TaskRow
from farm.records import AttemptReport
from farm.states import TaskState

_COPIED = ("step_id", "take", "rank", "charged", "node_losses", "solo")


def split_off(conn: sa.Connection, task: TaskRow, report: AttemptReport, moves: Moves) -> None:
    """Make tasks of the unpublished frames of a task that has just become done.

    Under the lock on the job (:mod:`farm.lifecycle.locks`), before what waits for the task is released. Some
    of its frames must be published and some not, and the report must say how to cut the rest.
    """
    assert report.split is not None and task.frames is not None
    frame_s, target_s = report.split.frame_s, report.split.target_s
    pending = conn.scalars(
        sa.select(frames.c.number).where(frames.c.task_id == task.id, frames.c.state == "pending")
    ).all()
    rest = FrameRange.of(pending)
    kept = FrameRange.parse(task.frames).without(rest)
    assert kept is not None
    parts = {new_id("task"): part for part in rest.chunks(chunk_size(frame_s, target_s))}
    _insert(conn, task, kept, parts, frame_s)
    _give_frames(conn, task, parts)
    _wait_for(conn, task, parts)
    moves.add(task.step_id, TaskState.READY, len(parts))
    # tasks of the step are longer than was known: without this several of them could travel as one bundle
    part_s = frame_s * max(len(part) for part in parts.values())
    moves.task_s[task.step_id] = max(moves.task_s.get(task.step_id, 0.0), part_s)
    over = OVER_PLAN * target_s
    events.emit(
        conn,
        "task.split",
        job_id=task.job_id,
        step_id=task.step_id,
        task_id=task.id,
        data={
            "frames": str(kept),
            "rest": str(rest),
            "tasks": len(parts),
            "frame_s": frame_s,
            "target_s": target_s,
            "why": f"a frame took {frame_s:.1f} s: the rest of the chunk would take over {over:g} s",
        },
    )


def _insert(
    conn: sa.Connection, task: TaskRow, kept: FrameRange, parts: Mapping[str, FrameRange], frame_s: float
) -> None:
    payload = conn.scalar(sa.select(tasks.c.payload).where(tasks.c.id == task.id))
    # apart from those of its other takes, so that results and parts of different takes never share a place
    last = conn.scalar(sa.select(sa.func.max(tasks.c.position)).where(tasks.c.step_id == task.step_id)) or 0
    rows = [
        {
            "id": part_id,
            "position": last + 1 + index,
            "frames": str(part),
            "payload": _of_frames(payload, task.frames, part),
            "seconds": frame_s * len(part),
        }
        for index, (part_id, part) in enumerate(parts.items())
    ]
    columns = {"id": "text", "position": "int", "frames": "text", "payload": "json", "seconds": "float"}
    new = json_rows(conn, "new", columns, rows)
    copied = [tasks.c[name] for name in _COPIED]
    made = [sa.literal(TaskState.READY.value), sa.literal(0), sa.literal(task.now)]
    conn.execute(
        tasks.insert().from_select(
            [*columns, *_COPIED, "state", "waiting_on", "ready_at"],
            sa.select(*(new.c[name] for name in columns), *copied, *made)
            .select_from(tasks.join(new, sa.true()))
            .where(tasks.c.id == task.id),
        )
    )
    own = _of_frames(payload, task.frames, kept)
    changed: dict[str, Any] = {"payload": own} if own != payload else {}
    conn.execute(tasks.update().where(tasks.c.id == task.id).values(frames=str(kept), **changed))
    task.frames = str(kept)


def _of_frames(payload: Any, was: str | None, part: FrameRange) -> Any:
    """The payload; where it repeats the task's frames, with those of the part."""
    if isinstance(payload, dict) and payload.get("frames") == was:
        return payload | {"frames": str(part)}
    return payload


def _give_frames(conn: sa.Connection, task: TaskRow, parts: Mapping[str, FrameRange]) -> None:
    rows = [{"number": number, "task_id": part_id} for part_id, part in parts.items() for number in part]
    new = json_rows(conn, "new", {"number": "int", "task_id": "text"}, rows)
    conn.execute(
        frames.update()
        .values(task_id=new.c.task_id)
        .where(
            frames.c.step_id == task.step_id,
            frames.c.take == task.take,
            frames.c.number == new.c.number,
            frames.c.task_id == task.id,
        )
    )


def _wait_for(conn: sa.Connection, task: TaskRow, parts: Mapping[str, FrameRange]) -> None:
    """Copy what the task waited for to its parts; who waits for it waits for the parts with their frames."""
    edge = task_dependencies.c
    ids = json_rows(conn, "part", {"id": "text"}, [{"id": part_id} for part_id in parts])
    conn.execute(
        task_dependencies.insert().from_select(
            ["task_id", "on_task_id"],
            sa.select(ids.c.id, edge.on_task_id)
            .select_from(task_dependencies.join(ids, sa.true()))
            .where(edge.task_id == task.id),
        )
    )
    followers = (
        sa.select(tasks.c.id, tasks.c.frames)
        .where(tasks.c.id.in_(sa.select(edge.task_id).where(edge.on_task_id == task.id)))
        .order_by(tasks.c.id)
    )
    index = FrameIndex()
    for part_id, part in parts.items():
        index.add(part_id, part)
    edges = []
    counts = []
    for follower, text in conn.execute(lock(conn, followers)).all():
        needed = list(index.needed(FrameRange.parse(text) if text else None))
        edges += [{"task_id": follower, "on_task_id": part_id} for part_id in needed]
        counts.append({"id": follower, "number": len(needed)})
    if not edges:
        return
    conn.execute(task_dependencies.insert(), edges)
    more = json_rows(conn, "more", {"id": "text", "number": "int"}, counts)
    conn.execute(
        tasks.update().values(waiting_on=tasks.c.waiting_on + more.c.number).where(tasks.c.id == more.c.id)
    )
