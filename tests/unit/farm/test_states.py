"""The table of task states, pair by pair, and the states of groups."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.lifecycle.counters import derive_job_state
from farm.states import (
    ENDED,
    FINAL,
    OPEN,
    TRANSITIONS,
    Actor,
    GroupState,
    TaskState,
    derive_state,
    may_move,
)

T, A = TaskState, Actor
# written out again from the design, not read from the table under test
ALLOWED = {
    (T.BLOCKED, T.READY, A.DEPENDENCY),
    (T.BLOCKED, T.UNREACHABLE, A.DEPENDENCY),
    (T.BLOCKED, T.CANCELLED, A.PERSON),
    (T.READY, T.DISPATCHED, A.SCHEDULER),
    (T.READY, T.CANCELLED, A.PERSON),
    (T.DISPATCHED, T.RUNNING, A.ATTEMPT),
    (T.DISPATCHED, T.READY, A.SCHEDULER),
    (T.DISPATCHED, T.CANCELLED, A.PERSON),
    (T.RUNNING, T.DONE, A.ATTEMPT),
    (T.RUNNING, T.READY, A.ATTEMPT),
    (T.RUNNING, T.READY, A.SCHEDULER),
    (T.RUNNING, T.FAILED, A.ATTEMPT),
    (T.RUNNING, T.FAILED, A.SCHEDULER),
    (T.RUNNING, T.CANCELLED, A.ATTEMPT),
    (T.RUNNING, T.CANCELLED, A.SCHEDULER),
    (T.FAILED, T.READY, A.PERSON),
    (T.UNREACHABLE, T.BLOCKED, A.PERSON),
}


@pytest.mark.parametrize(("source", "target"), list(itertools.product(TaskState, TaskState)))
def test_each_pair_of_states_is_allowed_for_exactly_its_actors(source: TaskState, target: TaskState) -> None:
    for actor in Actor:
        assert may_move(source, target, actor) == ((source, target, actor) in ALLOWED)


def test_done_and_cancelled_are_final() -> None:
    assert {T.DONE, T.CANCELLED} == FINAL
    assert not [pair for pair in TRANSITIONS if pair[0] in FINAL]


def test_every_state_is_open_or_ended() -> None:
    assert set(TaskState) == OPEN | ENDED
    assert not OPEN & ENDED


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ({}, "waiting"),
        ({T.BLOCKED: 3}, "waiting"),
        ({T.READY: 2, T.BLOCKED: 1}, "waiting"),
        ({T.READY: 2, T.DISPATCHED: 1}, "running"),
        ({T.RUNNING: 1}, "running"),
        ({T.READY: 1, T.DONE: 1}, "running"),
        ({T.BLOCKED: 1, T.FAILED: 1}, "running"),
        ({T.DONE: 5}, "done"),
        ({T.DONE: 5, T.CANCELLED: 1}, "cancelled"),
        ({T.DONE: 5, T.CANCELLED: 1, T.FAILED: 1}, "failed"),
        ({T.UNREACHABLE: 1}, "failed"),
    ],
)
def test_a_step_has_the_state_that_its_tasks_give_it(counts: dict[TaskState, int], state: str) -> None:
    assert derive_state(counts) == state


@given(st.dictionaries(st.sampled_from(sorted(GroupState)), st.integers(0, 3)))
def test_a_job_is_done_only_if_every_step_is(states: dict[GroupState, int]) -> None:
    derived = derive_job_state(states)
    others = sum(n for state, n in states.items() if state != GroupState.DONE)
    assert (derived == GroupState.DONE) == (others == 0)


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ({"waiting": 2}, "waiting"),
        ({"waiting": 1, "done": 1}, "running"),
        ({"waiting": 1, "failed": 1}, "running"),
        ({"running": 1, "waiting": 1}, "running"),
        ({"done": 1, "cancelled": 1}, "cancelled"),
        ({"done": 1, "cancelled": 1, "failed": 1}, "failed"),
    ],
)
def test_a_job_has_the_state_that_its_steps_give_it(states: dict[str, int], state: str) -> None:
    assert derive_job_state(states) == state
