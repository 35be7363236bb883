"""Ids of jobs as people write them, and what the shell is offered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import pytest

from api.cli import door
from farm.errors import InvalidInput, NotFound, Unavailable

FIRST, SECOND, THIRD = (f"job_0192f3b0c5d4{end:0>20}" for end in ("aaaa1", "bbbb1", "cccc2"))


class _Farm:
    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def jobs(self, limit: int, id: str | None = None) -> list[Any]:
        self.asked.append({"limit": limit, "id": id})
        part = (id or "").removeprefix("job_")
        ids = [one for one in (FIRST, SECOND, THIRD) if one[4:].startswith(part) or one.endswith(part)]
        return [SimpleNamespace(id=one, name="turntable", state="done") for one in ids][:limit]


@pytest.fixture
def farm(monkeypatch: pytest.MonkeyPatch) -> _Farm:
    made = _Farm()
    monkeypatch.setattr(door, "connect", lambda: made)
    return made


@pytest.mark.parametrize("text", [FIRST, "task_0192f3b0c5d4000000000000000aaaa1", "turntable", "abc"])
def test_whole_ids_and_what_is_no_part_of_one_are_left_alone(farm: _Farm, text: str) -> None:
    assert door.full_id(text) == text
    assert farm.asked == []


def test_the_end_of_an_id_is_enough_where_one_job_has_it(farm: _Farm) -> None:
    assert door.full_ids(["aaaa1", "0cccc2"]) == [FIRST, THIRD]


def test_a_part_of_several_ids_is_refused_with_the_candidates(farm: _Farm) -> None:
    with pytest.raises(InvalidInput, match="write more of it") as caught:
        door.full_id("job_0192f3b0")
    for one in (FIRST, SECOND, THIRD):
        assert f"{one} (turntable)" in caught.value.message


def test_a_part_of_no_id_is_said_so(farm: _Farm) -> None:
    with pytest.raises(NotFound, match="no job's id begins or ends with 'beef'"):
        door.full_id("beef")


def test_the_shell_is_offered_the_newest_jobs_with_their_names(farm: _Farm) -> None:
    assert door.offer_jobs("job_") == [(one, "turntable (done)") for one in (FIRST, SECOND, THIRD)]
    assert door.offer_jobs("task_") == []
    assert door.offer("waiting", "running")("r") == ["running"]


def test_a_farm_that_is_away_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise Unavailable("no farm here")

    monkeypatch.setattr(door, "connect", away)
    assert door.offer_jobs("") == []
