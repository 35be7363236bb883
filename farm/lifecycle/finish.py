"""An attempt's report: what it made is kept, and its task moves on, if its epoch still holds.

A report counts once. Sent again it changes nothing ("repeated"); from an attempt whose task has gone on
without it, it only closes that attempt's row ("fenced_off"), and what it made stays unreferenced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from farm import events, ledger
from farm.db.rows import clean_text, id_rows, lock
from farm.db.tables import attempts, job_assets, jobs, steps
from farm.db.tables import contents as contents_table
from farm.db.tables import tasks as tasks_table
from farm.errors import FarmError, InvalidInput
from farm.lifecycle.attempt_rows import FENCED, close_attempts, put_artifacts, spend
from farm.lifecycle.counters import Moves
from farm.lifecycle.locks import lock_jobs
from farm.lifecycle.outcomes import Closing, conclude, leaves_rest
from farm.lifecycle.publish import missing_frames, put_frames
from farm.lifecycle.release import settle
from farm.lifecycle.slot_rows import idle_slots, lock_slots
from farm.lifecycle.splitting import split_off
from farm.lifecycle.task_rows import TaskRow, read_tasks, write_tasks
from farm.plan import StepPlan
from farm.records import AttemptReport, FinishVerdict
from farm.settings import Settings
from farm.settings import settings as process_settings
from farm.states import Actor, AttemptState, TaskState
from farm.submission import settle_plan

Assets = Mapping[str, tuple[str, int]]
"""Assets of a job: job path -> (SHA-256, bytes)."""
Expander = Callable[[str, dict[str, Any], str, list[dict[str, Any]], Assets], StepPlan]
"""``(kind, spec, step name, results of the step that it waited for, assets)`` -> the step with its tasks."""


def finish(
    conn: sa.Connection,
    report: AttemptReport,
    slot_id: str,
    expander: Expander | None = None,
    settings: Settings | None = None,
) -> FinishVerdict:
    """Record how one attempt ended; see :func:`finish_many`."""
    return finish_many(conn, [report], slot_id, expander, settings)[0]


def finish_many(
    conn: sa.Connection,
    reports: Sequence[AttemptReport],
    slot_id: str,
    expander: Expander | None = None,
    settings: Settings | None = None,
) -> list[FinishVerdict]:
    """Record how the attempts of a ticket ended, in one transaction; a verdict for each, in order.

    A task is done only if all its frames are published; a report that says otherwise counts as failed.
    One with a ``split`` leaves the frames that are not published to new tasks, which are made here.
    ``expander`` makes the tasks of deferred steps when their cause is done; it may be None where no step is
    deferred. Raises :class:`ValueError` for a report of an attempt that still runs.
    """
    if any(report.state == AttemptState.RUNNING for report in reports):
        raise ValueError("an attempt that still runs cannot be finished")
    config = settings or process_settings()
    ids = [report.attempt_id for report in reports]
    owners = conn.scalars(
        sa.select(attempts.c.job_id).where(attempts.c.id.in_(id_rows(conn, ids))).distinct()
    )
    job_ids = set(owners)
    node_id = lock_slots(conn, {slot_id}).get(slot_id)
    lock_jobs(conn, job_ids)
    rows = read_tasks(conn, {report.task_id for report in reports})
    verdicts, counted = _judge(conn, reports, rows)
    moves = Moves()
    ended: list[str] = []
    if counted:
        ended = _count(conn, counted, rows, moves, expander, config, (slot_id, node_id))
    fenced = [report for report, verdict in zip(reports, verdicts, strict=True) if verdict == "fenced_off"]
    close_attempts(conn, [(report, AttemptState.LOST, FENCED, None) for report in fenced])
    owner = {row.id: row.project_id for row in rows.values()}
    spend(
        conn,
        [
            (owner[r.task_id], r)
            for r, v in zip(reports, verdicts, strict=True)
            if v != "repeated" and r.task_id in owner
        ],
    )
    ledger.release_ended(conn, ids, ended)
    idle_slots(conn, {slot_id})
    return verdicts


def _judge(
    conn: sa.Connection, reports: Sequence[AttemptReport], rows: Mapping[str, TaskRow]
) -> tuple[list[FinishVerdict], list[AttemptReport]]:
    query = sa.select(
        attempts.c.id, attempts.c.task_id, attempts.c.epoch, attempts.c.ended_at, attempts.c.error_type
    ).where(attempts.c.id.in_(id_rows(conn, [report.attempt_id for report in reports])))
    known = {row.id: row for row in conn.execute(query)}
    verdicts: list[FinishVerdict] = []
    counted: list[AttemptReport] = []
    for report in reports:
        row, task = known.get(report.attempt_id), rows.get(report.task_id)
        if row is None or row.task_id != report.task_id or row.epoch != report.epoch:
            # the job was deleted, or this never was an attempt of the task
            verdicts.append("fenced_off")
        elif row.ended_at is not None:
            verdicts.append("fenced_off" if row.error_type in (FENCED, "lost") else "repeated")
        elif task is None or task.state != TaskState.RUNNING or task.epoch != report.epoch:
            verdicts.append("fenced_off")
        elif any(report.attempt_id == other.attempt_id for other in counted):
            verdicts.append("repeated")
        else:
            verdicts.append("counted")
            counted.append(report)
    return verdicts, counted


def _count(
    conn: sa.Connection,
    reports: list[AttemptReport],
    rows: Mapping[str, TaskRow],
    moves: Moves,
    expander: Expander | None,
    config: Settings,
    slot: tuple[str, str | None],
) -> list[str]:
    """Write counted reports; ids of the tasks that have ended."""
    by_step: dict[str, list[AttemptReport]] = {}
    for report in reports:
        by_step.setdefault(rows[report.task_id].step_id, []).append(report)
    for step_reports in by_step.values():
        frames = [(rows[r.task_id], r.attempt_id, frame) for r in step_reports for frame in r.frames]
        put_frames(conn, frames, moves)
    missing = missing_frames(conn, [r.task_id for r in reports if r.state == AttemptState.DONE])
    now = max(row.now for row in rows.values())
    took = _took(by_step, rows, now)
    closings = []
    for report in reports:
        task = rows[report.task_id]
        lacking = missing.get(task.id, 0)
        closings.append(conclude(task, report, now, config, lacking))
    split = [r for r in reports if leaves_rest(rows[r.task_id], r, missing.get(r.task_id, 0))]
    split = [r for r in split if rows[r.task_id].state == TaskState.DONE]
    # a step that gets new tasks is not done yet
    grown = {rows[r.task_id].step_id for r in split}
    whole = {step_id: step_reports for step_id, step_reports in by_step.items() if step_id not in grown}
    expansions = _plan_deferred(conn, whole, rows, closings, expander, now, config)
    written = write_tasks(conn, Actor.ATTEMPT, [rows[r.task_id] for r in reports], moves)
    close_attempts(conn, closings)
    done = [row for row in written if row.state == TaskState.DONE]
    put_artifacts(conn, [(r, rows[r.task_id]) for r in reports if rows[r.task_id].state == TaskState.DONE])
    _measure(by_step, rows, moves, took)
    for report in split:
        split_off(conn, rows[report.task_id], report, moves)
    _tell(conn, by_step, rows, closings, slot)
    ended = [row for row in written if row.state in (TaskState.FAILED, TaskState.CANCELLED)]
    settle(
        conn,
        moves,
        done=[row.id for row in done],
        cut=[row.id for row in ended],
        expansions=expansions,
    )
    return [row.id for row in [*done, *ended]]


def _plan_deferred(
    conn: sa.Connection,
    by_step: Mapping[str, list[AttemptReport]],
    rows: Mapping[str, TaskRow],
    closings: list[Closing],
    expander: Expander | None,
    now: float,
    config: Settings,
) -> dict[str, StepPlan]:
    """Plans of the deferred steps whose cause will be done once these reports are written.

    The kind's code runs before anything is written: if it refuses, the last task of the cause fails with
    its words, so that the person reads them; a retry asks again.
    """
    waiting = conn.execute(
        sa.select(
            steps.c.id, steps.c.name, steps.c.deferred_on, jobs.c.kind, jobs.c.spec, jobs.c.id.label("job_id")
        )
        .join(jobs, jobs.c.id == steps.c.job_id)
        .where(steps.c.deferred, steps.c.deferred_on.in_(sorted(by_step)), ~jobs.c.cancel_requested)
        .order_by(steps.c.id)
    ).all()
    plans: dict[str, StepPlan] = {}
    for cause in sorted({row.deferred_on for row in waiting}):
        finishing = [rows[r.task_id] for r in by_step[cause] if rows[r.task_id].state == TaskState.DONE]
        if not finishing or not _completes(conn, cause, len(finishing)):
            continue
        if expander is None:
            raise ValueError("a deferred step is to be planned, but finish was given no expander")
        results = _results(conn, cause, {row.id: row.result for row in finishing})
        made: dict[str, StepPlan] = {}
        for row in (row for row in waiting if row.deferred_on == cause):
            plan: StepPlan | None = None
            try:
                plan = expander(row.kind, row.spec, row.name, results, _assets(conn, row.job_id))
                made[row.id] = settle_plan(conn, row.job_id, plan, config)
            except Exception as error:  # noqa: BLE001  a kind's code may raise anything; the job must be told
                # a kind that refuses what was submitted has said all that the person needs
                refused = plan is None and isinstance(error, InvalidInput)
                words = clean_text(
                    str(error) if refused else f"step {row.name!r} could not be planned: {error}"
                )
                kind = error.slug if isinstance(error, FarmError) else type(error).__name__
                _refuse(finishing[-1], closings, now, kind, words)
                break
        else:
            plans |= made
    return plans


def _refuse(last: TaskRow, closings: list[Closing], now: float, kind: str, words: str) -> None:
    # its result stays: the person reads there what the refusal is about
    last.to_end(TaskState.FAILED, now, words)
    for index, (report, *_) in enumerate(closings):
        if report.task_id == last.id:
            closings[index] = (report, AttemptState.FAILED, kind, words)


def _completes(conn: sa.Connection, step_id: str, finishing: int) -> bool:
    """Whether the step is done when so many more of its tasks are; locks the step."""
    counts = [steps.c[f"n_{state}"] for state in TaskState if state != TaskState.DONE]
    query = sa.select(sum(counts[1:], start=counts[0])).where(steps.c.id == step_id)
    return bool(conn.scalar(lock(conn, query)) == finishing)


def _results(conn: sa.Connection, step_id: str, fresh: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the step's tasks found, in task order, the newest take of each; ``fresh`` is not written yet."""
    query = (
        sa.select(tasks_table.c.id, tasks_table.c.position, tasks_table.c.result)
        .where(tasks_table.c.step_id == step_id)
        .order_by(tasks_table.c.position, tasks_table.c.take)
    )
    newest = {position: fresh.get(task_id, result) for task_id, position, result in conn.execute(query)}
    return [result for result in newest.values() if result is not None]


def _assets(conn: sa.Connection, job_id: str) -> dict[str, tuple[str, int]]:
    query = (
        sa.select(job_assets.c.path, job_assets.c.sha256, contents_table.c.bytes)
        .join(contents_table, contents_table.c.sha256 == job_assets.c.sha256)
        .where(job_assets.c.job_id == job_id)
    )
    return {path: (sha256, size) for path, sha256, size in conn.execute(query)}


def _took(
    by_step: Mapping[str, list[AttemptReport]], rows: Mapping[str, TaskRow], now: float
) -> dict[str, float]:
    """Seconds per task from dispatch to this moment: a ticket's way, its claim and its finish among them."""
    took = {}
    for step_id, reports in by_step.items():
        sent = [at for r in reports if (at := rows[r.task_id].dispatched_at) is not None]
        took[step_id] = (now - min(sent)) / len(reports) if sent else 0.0
    return took


def _measure(
    by_step: Mapping[str, list[AttemptReport]],
    rows: Mapping[str, TaskRow],
    moves: Moves,
    took: Mapping[str, float],
) -> None:
    """What a task of each step costs its slot: short ones cost more than their work."""
    for step_id, reports in by_step.items():
        times = [r.cost.slot_s for r in reports if rows[r.task_id].state == TaskState.DONE]
        if any(times):
            moves.task_s[step_id] = max(sum(times) / len(times), took[step_id])


def _tell(
    conn: sa.Connection,
    by_step: Mapping[str, list[AttemptReport]],
    rows: Mapping[str, TaskRow],
    closings: Sequence[Closing],
    slot: tuple[str, str | None],
) -> None:
    ended = {report.attempt_id: state for report, state, _, _ in closings}
    for step_id, reports in by_step.items():
        states: dict[str, list[str]] = {}
        for report in reports:
            states.setdefault(rows[report.task_id].state, []).append(report.task_id)
        events.emit(
            conn,
            "attempt.ended",
            job_id=rows[reports[0].task_id].job_id,
            step_id=step_id,
            slot_id=slot[0],
            node_id=slot[1],
            data={
                "attempts": [[r.task_id, r.attempt_id, ended[r.attempt_id]] for r in reports],
                "states": states,
            },
        )
