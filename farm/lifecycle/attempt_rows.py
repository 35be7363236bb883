"""Rows of attempts as they are closed, with what they made and what they used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from farm import events
from farm.db.connect import db_now
from farm.db.rows import clean_json, clean_text, dumps, json_rows, json_table
from farm.db.tables import artifacts, attempts, projects
from farm.ids import new_id
from farm.lifecycle.outcomes import Closing
from farm.lifecycle.publish import record_contents
from farm.lifecycle.task_rows import TaskRow
from farm.records import AttemptReport
from farm.states import AttemptState

FENCED = "fenced-off"
_TIMES = ("fetch_s", "load_s", "work_s", "write_s", "held_s")
_COSTS = ("slot_s", "cpu_s", "gpu_s", "energy_j", "peak_rss", "peak_vram")
_COLUMNS = {
    "state": "text", "charged": "bool", "error_type": "text", "error": "text", "device": "json",
    **dict.fromkeys((*_TIMES, *_COSTS[:4]), "float"), "peak_rss": "int", "peak_vram": "int",
}  # fmt: skip


def close_attempts(conn: sa.Connection, closings: Sequence[Closing]) -> set[str]:
    """Write how attempts ended; those that were closed before stay as they are. Ids that were closed now."""
    if not closings:
        return set()
    ended = [_ended(*closing) for closing in closings]
    return set(conn.scalars(_close_statement(conn.dialect.name), {"ended_rows": dumps(ended)}))


@lru_cache
def _close_statement(dialect: str) -> Any:
    rows = json_table(dialect, "ended", {"id": "text", **_COLUMNS})
    return (
        attempts.update()
        .values({name: rows.c[name] for name in _COLUMNS} | {"ended_at": db_now()})
        .where(attempts.c.id == rows.c.id, attempts.c.ended_at.is_(None))
        .returning(attempts.c.id)
    )


def close_lost(
    conn: sa.Connection,
    tasks: Sequence[tuple[str, int]],
    state: AttemptState,
    error_type: str | None,
    error: str | None,
    charged: Sequence[str] = (),
) -> list[str]:
    """Close the open attempts of these ``(task_id, epoch)`` without a report; their ids.

    ``charged`` names the tasks for which it spent a retry.
    """
    if not tasks:
        return []
    rows = json_rows(
        conn,
        "held",
        {"task_id": "text", "epoch": "int", "charged": "bool"},
        [{"task_id": t, "epoch": e, "charged": t in set(charged)} for t, e in tasks],
    )
    return list(
        conn.scalars(
            attempts.update()
            .values(
                state=state,
                error_type=error_type,
                error=error,
                charged=rows.c.charged,
                ended_at=db_now(),
                slot_s=db_now() - attempts.c.started_at,
            )
            .where(
                attempts.c.task_id == rows.c.task_id,
                attempts.c.epoch == rows.c.epoch,
                attempts.c.ended_at.is_(None),
            )
            .returning(attempts.c.id)
        )
    )


def put_artifacts(conn: sa.Connection, made: Sequence[tuple[AttemptReport, TaskRow]]) -> None:
    """Record the artifacts of attempts that made their task done."""
    rows: list[dict[str, Any]] = [
        {
            "id": new_id("art"),
            "job_id": task.job_id,
            "step_id": task.step_id,
            "task_id": task.id,
            "attempt_id": report.attempt_id,
            "name": clean_text(item.name),
            "sha256": item.sha256,
            "bytes": item.bytes,
            "media_type": item.media_type,
            "meta": clean_json(item.meta),
            "created_at": report.ended_at,
        }
        for report, task in made
        for item in report.artifacts
    ]
    if not rows:
        return
    record_contents(conn, ((row["sha256"], row["bytes"]) for row in rows))
    conn.execute(artifacts.insert(), rows)
    for row in rows:
        shown = {name: row[name] for name in ("id", "name", "sha256", "bytes", "media_type")}
        events.emit(
            conn,
            "artifact.published",
            job_id=row["job_id"],
            step_id=row["step_id"],
            task_id=row["task_id"],
            data=shown,
        )


def spend(conn: sa.Connection, reports: Sequence[tuple[str, AttemptReport]]) -> None:
    """Add what these attempts used to their projects' accounts: ``(project id, report)`` each."""
    used: dict[str, tuple[float, float]] = {}
    for project, report in reports:
        slot_s, gpu_s = used.get(project, (0.0, 0.0))
        used[project] = (slot_s + _number(report.cost.slot_s), gpu_s + _number(report.cost.gpu_s))
    for project in sorted(used):
        slot_s, gpu_s = used[project]
        if slot_s or gpu_s:
            conn.execute(
                projects.update()
                .where(projects.c.id == project)
                .values(used_slot_s=projects.c.used_slot_s + slot_s, used_gpu_s=projects.c.used_gpu_s + gpu_s)
            )


def _ended(
    report: AttemptReport, state: AttemptState, error_type: str | None, error: str | None
) -> dict[str, Any]:
    charged = state == AttemptState.FAILED or (state == AttemptState.LOST and report.charged)
    return {
        "id": report.attempt_id,
        "state": state.value,
        "charged": charged and error_type != FENCED,
        "error_type": error_type,
        "error": error,
        "device": clean_json(report.device),
        **{name: clean_json(getattr(report.times, name)) for name in _TIMES},
        **{name: clean_json(getattr(report.cost, name)) for name in _COSTS},
    }


def _number(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) and value > 0 else 0.0
