"""What slots and agents ask of the database beyond the moves of ``farm.lifecycle``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from farm import events
from farm.db import tables as t
from farm.lifecycle import machines
from farm.lifecycle.leases import return_unbegun


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One file of a published frame that is its number's current take."""

    number: int
    sha256: str
    width: int
    height: int
    format: str


def published_files(conn: sa.Connection, job_id: str, step: str, output: str) -> list[PublishedFile]:
    """Files of that output of a step, in frame order, current takes only."""
    same_frame = sa.and_(
        t.frame_files.c.step_id == t.frames.c.step_id,
        t.frame_files.c.take == t.frames.c.take,
        t.frame_files.c.number == t.frames.c.number,
    )
    query = (
        sa.select(
            t.frames.c.number,
            t.frame_files.c.sha256,
            t.frame_files.c.width,
            t.frame_files.c.height,
            t.frame_files.c.format,
        )
        .select_from(
            t.frames.join(t.steps, t.steps.c.id == t.frames.c.step_id).join(t.frame_files, same_frame)
        )
        .where(
            t.steps.c.job_id == job_id,
            t.steps.c.name == step,
            t.frame_files.c.output == output,
            t.frames.c.is_current,
            t.frames.c.state == "published",
        )
        .order_by(t.frames.c.number)
    )
    return [PublishedFile(*row) for row in conn.execute(query)]


@dataclass(frozen=True, slots=True)
class PublishedArtifact:
    """One artifact of a step."""

    name: str
    sha256: str
    meta: dict[str, Any]


def published_artifacts(conn: sa.Connection, job_id: str, step: str) -> list[PublishedArtifact]:
    """Artifacts of a step's done tasks, by name; of two with one name the newer."""
    query = (
        sa.select(t.artifacts.c.name, t.artifacts.c.sha256, t.artifacts.c.meta)
        .join(t.steps, t.steps.c.id == t.artifacts.c.step_id)
        .where(t.artifacts.c.job_id == job_id, t.steps.c.name == step)
        .order_by(t.artifacts.c.name, t.artifacts.c.created_at, t.artifacts.c.id)
    )
    newest = {row.name: PublishedArtifact(*row) for row in conn.execute(query)}
    return list(newest.values())


def results(conn: sa.Connection, job_id: str, step: str) -> list[dict[str, Any]]:
    """What the done tasks of a step found, in task order; the newest take of each position counts."""
    query = (
        sa.select(t.tasks.c.position, t.tasks.c.result)
        .join(t.steps, t.steps.c.id == t.tasks.c.step_id)
        .where(
            t.steps.c.job_id == job_id,
            t.steps.c.name == step,
            t.tasks.c.state == "done",
            t.tasks.c.result.is_not(None),
        )
        .order_by(t.tasks.c.position, t.tasks.c.take)
    )
    newest = {row.position: row.result for row in conn.execute(query)}
    return [value for value in newest.values() if value is not None]


def job_assets(conn: sa.Connection, job_id: str) -> dict[str, str]:
    """SHA-256 of each asset of a job, by its job path."""
    query = sa.select(t.job_assets.c.path, t.job_assets.c.sha256).where(t.job_assets.c.job_id == job_id)
    return {row.path: row.sha256 for row in conn.execute(query)}


def comes_after(conn: sa.Connection, job_id: str, other: str) -> bool:
    """Whether a job was submitted after another one; who submitted it could see that one then."""
    edge = t.job_dependencies.c
    query = sa.select(edge.job_id).where(edge.job_id == job_id, edge.after_job_id == other)
    return conn.scalar(query) is not None


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task that the database thinks one of our slots runs."""

    task_id: str
    epoch: int
    slot_id: str
    serial: int
    attempt_id: str
    wish: str | None
    """``cancel``, ``park`` (also when the job is paused) or nothing."""
    timeout_s: float | None
    no_progress_s: float
    progress: float | None


def held_tasks(conn: sa.Connection, node_id: str) -> list[HeldTask]:
    """Running tasks of a node's slots, with what is wished of them."""
    query = (
        sa.select(
            t.tasks.c.id,
            t.tasks.c.epoch,
            t.tasks.c.slot_id,
            t.attempts.c.serial,
            t.attempts.c.id,
            sa.case(
                (t.jobs.c.cancel_requested, "cancel"),
                (t.jobs.c.paused & t.tasks.c.wish.is_(None), "park"),
                else_=t.tasks.c.wish,
            ),
            t.steps.c.timeout_s,
            t.steps.c.no_progress_s,
            t.tasks.c.progress,
        )
        .select_from(
            t.slots.join(t.tasks, t.tasks.c.slot_id == t.slots.c.id)
            .join(
                t.attempts,
                sa.and_(t.attempts.c.task_id == t.tasks.c.id, t.attempts.c.epoch == t.tasks.c.epoch),
            )
            .join(t.steps, t.steps.c.id == t.tasks.c.step_id)
            .join(t.jobs, t.jobs.c.id == t.steps.c.job_id)
        )
        .where(t.slots.c.node_id == node_id, t.tasks.c.state == "running")
    )
    return [HeldTask(*row) for row in conn.execute(query)]


@dataclass(frozen=True, slots=True)
class SlotRow:
    """What the database says of a slot."""

    state: str
    incarnation: str | None
    hold_reason: str | None


def slot_states(conn: sa.Connection, node_id: str) -> dict[str, SlotRow]:
    """What the database says of each slot of a node."""
    query = sa.select(t.slots.c.id, t.slots.c.state, t.slots.c.incarnation, t.slots.c.hold_reason).where(
        t.slots.c.node_id == node_id
    )
    return {row.id: SlotRow(*row[1:]) for row in conn.execute(query)}


def node_state(conn: sa.Connection, node_id: str) -> str:
    """Our node's state, as people and the reconciler set it."""
    return str(conn.scalar(sa.select(t.nodes.c.state).where(t.nodes.c.id == node_id)) or "")


def note_progress(conn: sa.Connection, values: list[tuple[str, int, float]]) -> None:
    """Write how far running tasks are: ``(task_id, epoch, fraction)`` each, one statement for all."""
    if not values:
        return
    conn.execute(
        sa.update(t.tasks)
        .where(
            t.tasks.c.id == sa.bindparam("b_id"),
            t.tasks.c.epoch == sa.bindparam("b_epoch"),
            t.tasks.c.state == "running",
        )
        .values(progress=sa.bindparam("b_fraction")),
        [
            {"b_id": task_id, "b_epoch": epoch, "b_fraction": fraction}
            for task_id, epoch, fraction in sorted(values)
        ],
    )


def leave_node(conn: sa.Connection, node_id: str) -> None:
    """A node's agent has ended its slots and goes: tickets that nobody took go back, the node is down.

    A node that people drain stays so for its next agent.
    """
    slots = list(conn.scalars(sa.select(t.slots.c.id).where(t.slots.c.node_id == node_id)))
    for slot_id in sorted(slots):
        untaken = conn.execute(
            sa.select(t.tasks.c.id, t.tasks.c.epoch).where(
                t.tasks.c.slot_id == slot_id, t.tasks.c.state == "dispatched"
            )
        ).all()
        return_unbegun(conn, slot_id, [(row.id, row.epoch) for row in untaken])
    machines.retire_slots(conn, node_id, keep=[])
    gone = conn.execute(
        t.nodes.update().where(t.nodes.c.id == node_id, t.nodes.c.state == "up").values(state="down")
    )
    if gone.rowcount:
        events.emit(conn, "node.state", node_id=node_id, data={"state": "down"})
