"""Identifiers sort by time of making, and are told apart by prefix."""

from __future__ import annotations

import pytest

from farm.ids import is_id, new_id


def test_ids_made_one_after_the_other_ascend() -> None:
    made = [new_id("step") for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    "text",
    ["", "job_", "job_123", "JOB_" + "0" * 32, "task_" + "0" * 32, "job_" + "g" * 32, "job_" + "0" * 33],
)
def test_what_is_not_a_job_id_is_not_taken_for_one(text: str) -> None:
    assert not is_id(text, "job")


def test_a_fresh_id_is_one() -> None:
    assert is_id(new_id("job"), "job")
