"""Cursors: opaque, of one list, refused when they are anything else."""

from __future__ import annotations

import base64
import json

import pytest

from api import pages
from api.problems import HttpProblem


def forged(values: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


def test_a_cursor_gives_back_its_place() -> None:
    cursor = pages.encode("jobs", [1764523325.125, "job_1"])
    assert pages.decode("jobs", cursor, [float, str]) == [1764523325.125, "job_1"]
    assert pages.decode("jobs", None, [float, str]) is None


@pytest.mark.parametrize(
    "cursor",
    [
        "", "abc", "%%%", "é", pages.encode("tasks", [1.0, "x"]), pages.encode("jobs", [1.0]),
        pages.encode("jobs", ["x", "x"]), pages.encode("jobs", [1.0, 2]), pages.encode("jobs", [True, "x"]),
        pages.encode("jobs", [2**70, "x"]), pages.encode("jobs", [1.0, "\0"]), forged({"a": 1}),
        forged("x"), base64.urlsafe_b64encode(b"[" * 100_000).decode(), forged(["jobs", None, "x"]),
        base64.urlsafe_b64encode(b'["jobs",NaN,"x"]').decode(),
    ],
)  # fmt: skip
def test_other_text_is_refused(cursor: str) -> None:
    with pytest.raises(HttpProblem) as caught:
        pages.decode("jobs", cursor, [float, str])
    assert caught.value.status_code == 422


def test_a_page_is_cut_and_the_last_one_has_no_cursor() -> None:
    rows = [{"n": 1}, {"n": 2}, {"n": 3}]
    first, cursor = pages.page("numbers", rows, 2, lambda row: [row["n"]])
    assert first == [{"n": 1}, {"n": 2}]
    assert pages.decode("numbers", cursor, [int]) == [2]
    assert pages.page("numbers", rows, 3, lambda row: [row["n"]]) == (rows, None)
