"""Rows for the scheduler's tests: projects, jobs of one step, nodes and slots, written straight into tables.

Counters are written as counting the rows gives, so that tests may check that they stay so.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import sqlalchemy as sa

from farm.db.connect import Database, db_now
from farm.db.tables import jobs, nodes, projects, slots, steps, tasks, users
from farm.ids import new_id
from farm.records import Ticket
from farm.states import TaskState


def now(conn: sa.Connection) -> float:
    """The database's time."""
    value: float = conn.scalars(sa.select(db_now())).one()
    return value


def make_project(conn: sa.Connection, name: str = "p", **fields: Any) -> str:
    """A project (share 1 unless told otherwise); its id."""
    project_id = new_id("proj")
    conn.execute(projects.insert().values(id=project_id, name=name, created_at=db_now(), **fields))
    return project_id


def make_user(conn: sa.Connection) -> str:
    """The one user of the tests; its id."""
    known = conn.scalar(sa.select(users.c.id))
    if known is None:
        known = new_id("user")
        conn.execute(users.insert().values(id=known, name="u", created_at=db_now()))
    return str(known)


def make_job(
    conn: sa.Connection,
    project_id: str,
    n_tasks: int = 1,
    *,
    age_s: float = 0.0,
    priority: int = 50,
    paused: bool = False,
    state: TaskState = TaskState.READY,
    task_fields: dict[str, Any] | None = None,
    **step_fields: Any,
) -> tuple[str, str, list[str]]:
    """A job of one step whose tasks all have ``state``; ids of job, step and tasks."""
    job_id, step_id = new_id("job"), new_id("step")
    conn.execute(
        jobs.insert().values(
            id=job_id, name="j", kind="probe", project_id=project_id, user_id=make_user(conn), labels={},
            spec={}, state="waiting", priority=priority, paused=paused, created_at=now(conn) - age_s,
        )
    )  # fmt: skip
    step: dict[str, Any] = {
        "id": step_id, "job_id": job_id, "position": 0, "name": "s", "engine": "probe", "pool": "render",
        "state": "waiting", "payload": {}, "outputs": [], "requires": {}, "max_retries": 2,
        "no_progress_s": 600.0, f"n_{state}": n_tasks,
    }  # fmt: skip
    conn.execute(steps.insert().values(step | step_fields))
    task_ids = [new_id("task") for _ in range(n_tasks)]
    ready_at = now(conn)
    rows = [
        {"id": task_id, "step_id": step_id, "position": i, "state": state.value, "ready_at": ready_at}
        | (task_fields or {})
        for i, task_id in enumerate(task_ids)
    ]
    for start in range(0, len(rows), 5000):
        conn.execute(tasks.insert(), rows[start : start + 5000])
    return job_id, step_id, task_ids


def make_node(conn: sa.Connection, name: str = "n", state: str = "up") -> str:
    """A node seen just now; its id."""
    node_id = new_id("node")
    conn.execute(
        nodes.insert().values(
            id=node_id,
            name=name,
            state=state,
            incarnation="i",
            info={},
            started_at=db_now(),
            seen_at=db_now(),
        )
    )
    return node_id


def make_slots(
    conn: sa.Connection, node_id: str, number: int, pools: tuple[str, ...] = ("render",), **fields: Any
) -> list[str]:
    """Idle slots of a node; their ids in order of their names."""
    made = []
    offset = conn.scalar(sa.select(sa.func.count()).where(slots.c.node_id == node_id)) or 0
    for i in range(number):
        slot_id = new_id("slot")
        values: dict[str, Any] = {
            "id": slot_id, "node_id": node_id, "name": f"s{offset + i}", "pools": list(pools),
            "device": {"kind": "cpu"}, "state": "idle", "incarnation": "i", "warm": [],
            "changed_at": db_now(),
        }  # fmt: skip
        conn.execute(slots.insert().values(values | fields))
        made.append(slot_id)
    return made


def states_of(db: Database) -> Counter[str]:
    """How many tasks are in each state."""
    with db.read() as conn:
        return Counter(conn.scalars(sa.select(tasks.c.state)))


def holders(db: Database) -> dict[str, list[str]]:
    """Slot id -> ids of the tasks that it holds."""
    found: dict[str, list[str]] = {}
    with db.read() as conn:
        query = sa.select(tasks.c.slot_id, tasks.c.id).where(tasks.c.state.in_(["dispatched", "running"]))
        for slot_id, task_id in conn.execute(query):
            found.setdefault(slot_id, []).append(task_id)
    return found


def check_counters(db: Database) -> None:
    """Fails where a step's counters are not what counting its tasks gives."""
    with db.read() as conn:
        counted: dict[str, Counter[str]] = {}
        for step_id, state, number in conn.execute(
            sa.select(tasks.c.step_id, tasks.c.state, sa.func.count()).group_by(
                tasks.c.step_id, tasks.c.state
            )
        ):
            counted.setdefault(step_id, Counter())[state] = number
        for row in conn.execute(sa.select(steps)).mappings():
            for state in TaskState:
                assert row[f"n_{state}"] == counted.get(row["id"], Counter())[state.value], (row["id"], state)


def task_ids_of(ticket: Ticket) -> list[str]:
    """The tasks of a ticket."""
    return [entry.task_id for entry in ticket.entries]
