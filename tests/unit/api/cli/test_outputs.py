from __future__ import annotations

from types import SimpleNamespace

import pytest

from api.cli.outputs import job_folder, numbered_name, plain_name
from farm.errors import InvalidInput


@pytest.mark.parametrize(
    ("output", "number", "name"),
    [
        ("beauty.png", 12, "beauty.0012.png"),
        ("beauty.png", 123456, "beauty.123456.png"),
        ("beauty.png", -3, "beauty.-0003.png"),
        ("layers.v2.exr", 1, "layers.v2.0001.exr"),
        ("raw", 7, "raw.0007"),
    ],
)
def test_frames_are_numbered_as_film_tools_expect(output: str, number: int, name: str) -> None:
    assert numbered_name(output, number) == name


@pytest.mark.parametrize(
    ("given", "name"),
    [("film.mp4", "film.mp4"), ("../../etc/x", "x"), ("/etc/passwd", "passwd"), ("a\\..\\b.mp4", "b.mp4")],
)
def test_a_name_made_by_a_job_stays_in_its_folder(given: str, name: str) -> None:
    assert plain_name(given) == name


@pytest.mark.parametrize("given", ["", "..", "a/..", "/", "film\n.mp4", "x\0y"])
def test_a_name_that_cannot_be_a_file_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be a file name"):
        plain_name(given)


def test_jobs_of_one_name_have_folders_of_their_own() -> None:
    made = [
        job_folder(SimpleNamespace(name=name, kind="render", id=f"job_{'0' * 26}{end}"))  # type: ignore[arg-type]
        for name, end in (("turn table/v3", "3f9a1c"), ("turn table/v3", "aaaaaa"), ("../..", "bbbbbb"))
    ]
    assert made == ["turn-table-v3-3f9a1c", "turn-table-v3-aaaaaa", "render-bbbbbb"]
