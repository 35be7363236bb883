"""What the database hears of a dead slot: first what the slot still had to say, then what it left undone."""

from __future__ import annotations

import time
from pathlib import Path

import sqlalchemy as sa
import structlog

from farm.db import tables as t
from farm.db.connect import Database
from farm.lifecycle import machines
from farm.lifecycle.finish import finish_many
from farm.lifecycle.leases import lose, return_unbegun
from farm.lifecycle.publish import publish_frames
from farm.records import AttemptReport
from farm.settings import Settings
from farm.states import AttemptState
from workers.control import Command
from workers.expansion import expand_after
from workers.managed_slot import Death
from workers.spool import read_unanswered

log = structlog.get_logger(__name__)


def replay(db: Database, settings: Settings, spool: Path, slot_id: str) -> int:
    """Give the database what a dead slot's spool still holds, then remove the file; how many records.

    Safe to repeat: the database counts each frame and report once, and only while its epoch matches.
    """
    if not spool.exists():
        return 0
    owed = read_unanswered(spool)
    for group in owed.frames:
        with db.write() as conn:
            publish_frames(conn, group.task_id, group.epoch, group.attempt_id, group.frames)
    for report in owed.reports:
        with db.write() as conn:
            [verdict] = finish_many(conn, [report], slot_id, expand_after, settings)
        log.info("replayed a report", task=report.task_id, state=report.state.value, verdict=verdict)
    spool.unlink(missing_ok=True)
    count = len(owed.frames) + len(owed.reports)
    if count:
        log.info("replayed a spool", spool=spool.name, reports=len(owed.reports))
    return count


def report_death(db: Database, settings: Settings, death: Death) -> None:
    """Replay the spool, charge the attempt that the slot was on, give the rest back free."""
    replay(db, settings, death.spool, death.slot_id)
    with db.write() as conn:
        held = machines.slot_died(conn, death.slot_id, death.incarnation)
        lost = [
            (task_id, epoch, serial) for task_id, epoch, serial in held if serial and serial == death.serial
        ]
        rest = [
            (task_id, epoch) for task_id, epoch, serial in held if not (serial and serial == death.serial)
        ]
        if rest:
            return_unbegun(conn, death.slot_id, rest)
        for task_id, epoch, serial in lost:
            report = _report_of(conn, task_id, epoch, serial, death)
            finish_many(conn, [report], death.slot_id, expand_after, settings)
    if held:
        log.warning(
            "a slot died", slot=death.slot_id, note=death.note, lost=[x[0] for x in lost], returned=len(rest)
        )


def lose_all(conn: sa.Connection, settings: Settings, slots: dict[str, str | None]) -> list[str]:
    """Slots that were left by an agent that nobody saw end: what they ran is lost with their node.

    ``slots`` maps slot ids to incarnations. Ids of the tasks that were taken back.
    """
    held: list[tuple[str, int]] = []
    for slot_id in sorted(slots):
        held += [(task, epoch) for task, epoch, _ in machines.slot_died(conn, slot_id, slots[slot_id])]
    return lose(
        conn,
        held,
        error="the node's agent ended while this task ran",
        error_type="node-lost",
        node_lost=True,
        settings=settings,
    )


def _report_of(conn: sa.Connection, task_id: str, epoch: int, serial: int, death: Death) -> AttemptReport:
    attempt = conn.execute(
        sa.select(t.attempts.c.id, t.attempts.c.started_at).where(t.attempts.c.serial == serial)
    ).one()
    report = AttemptReport(task_id, epoch, attempt.id, AttemptState.LOST, ended_at=time.time())
    report.checkpoint = conn.scalar(sa.select(t.tasks.c.checkpoint).where(t.tasks.c.id == task_id))
    report.cost.slot_s = max(0.0, report.ended_at - attempt.started_at)
    if death.command is Command.CANCEL:
        report.state, report.charged = AttemptState.CANCELLED, False
    elif death.command in (Command.PARK, Command.FENCE, Command.PAUSE):
        report.state, report.charged = AttemptState.INTERRUPTED, False
        report.error_type, report.error = "killed-after-grace", death.reason
    elif death.command is Command.EXPIRE:
        report.state = AttemptState.FAILED
        report.error_type, report.error = "timed-out", death.reason
    else:
        report.killed_slot = True
        report.error_type = "slot-died"
        report.error = f"the slot was {death.note} while it ran this task"
    return report
