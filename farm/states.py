"""States of tasks, and the one table of their transitions (DESIGN section 4).

Step and job states are derived from task counts by :func:`derive_state`; nothing else sets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class TaskState(StrEnum):
    """Where a task is in its life. Parked is ``ready`` with a checkpoint."""

    BLOCKED = "blocked"
    READY = "ready"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNREACHABLE = "unreachable"


class GroupState(StrEnum):
    """State of a step or job, derived from its tasks."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptState(StrEnum):
    """How one execution of a task stands or ended."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    PARKED = "parked"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


class Actor(StrEnum):
    """Who moves a task."""

    SCHEDULER = "scheduler"
    ATTEMPT = "attempt"
    DEPENDENCY = "dependency"
    PERSON = "person"


FINAL = frozenset({TaskState.DONE, TaskState.CANCELLED})
ENDED = FINAL | {TaskState.FAILED, TaskState.UNREACHABLE}
OPEN = frozenset(TaskState) - ENDED

_T = TaskState
TRANSITIONS: dict[tuple[TaskState, TaskState], frozenset[Actor]] = {
    (_T.BLOCKED, _T.READY): frozenset({Actor.DEPENDENCY}),
    (_T.BLOCKED, _T.UNREACHABLE): frozenset({Actor.DEPENDENCY}),
    (_T.BLOCKED, _T.CANCELLED): frozenset({Actor.PERSON}),
    (_T.READY, _T.DISPATCHED): frozenset({Actor.SCHEDULER}),
    (_T.READY, _T.CANCELLED): frozenset({Actor.PERSON}),
    (_T.DISPATCHED, _T.RUNNING): frozenset({Actor.ATTEMPT}),
    (_T.DISPATCHED, _T.READY): frozenset({Actor.SCHEDULER}),
    (_T.DISPATCHED, _T.CANCELLED): frozenset({Actor.PERSON}),
    (_T.RUNNING, _T.DONE): frozenset({Actor.ATTEMPT}),
    (_T.RUNNING, _T.READY): frozenset({Actor.ATTEMPT, Actor.SCHEDULER}),
    (_T.RUNNING, _T.FAILED): frozenset({Actor.ATTEMPT, Actor.SCHEDULER}),
    # a person's wish; the attempt confirms it, or the scheduler when the attempt is gone
    (_T.RUNNING, _T.CANCELLED): frozenset({Actor.ATTEMPT, Actor.SCHEDULER}),
    (_T.FAILED, _T.READY): frozenset({Actor.PERSON}),
    (_T.UNREACHABLE, _T.BLOCKED): frozenset({Actor.PERSON}),
}


def may_move(source: TaskState, target: TaskState, actor: Actor) -> bool:
    """Whether ``actor`` may move a task from ``source`` to ``target``."""
    return actor in TRANSITIONS.get((source, target), frozenset())


def derive_state(counts: Mapping[TaskState, int]) -> GroupState:
    """State of a step or job that has these numbers of tasks.

    Open tasks keep a group running once anything has begun; a group with nothing open is failed if a task
    failed (or cannot be reached), else cancelled if one was cancelled, else done.
    """
    open_count = sum(counts.get(state, 0) for state in OPEN)
    ended = sum(counts.get(state, 0) for state in ENDED)
    if open_count:
        begun = ended + counts.get(_T.DISPATCHED, 0) + counts.get(_T.RUNNING, 0)
        return GroupState.RUNNING if begun else GroupState.WAITING
    if not ended:
        return GroupState.WAITING
    if counts.get(_T.FAILED, 0) or counts.get(_T.UNREACHABLE, 0):
        return GroupState.FAILED
    if counts.get(_T.CANCELLED, 0):
        return GroupState.CANCELLED
    return GroupState.DONE
