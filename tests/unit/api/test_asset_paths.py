"""Asset paths: relative and in one spelling, or refused with the reason."""

from __future__ import annotations

import pytest

from api import asset_paths
from api.problems import HttpProblem


@pytest.mark.parametrize("path", ["a", "scene/scene.xml", "a b/ü.png", "..a/b..", ".hidden", "x" * 255])
def test_paths_inside_the_job_are_taken(path: str) -> None:
    assert asset_paths.fault_of(path) is None


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "empty"),
        ("../../x", ".."),
        ("a/../b", ".."),
        ("/etc/passwd", "absolute"),
        ("C:/x", "absolute"),
        ("c:x", "absolute"),
        ("..\\x", "backslash"),
        ("a\0b", "NUL"),
        ("a\nb", "control"),
        ("\ud800", "control"),
        ("x" * 256, "longer than 255"),
        ("ü" * 128, "longer than 255 bytes"),
        ("x/" * 150 + "x", "301 characters"),
        ("./a", "write 'a'"),
        ("a//b", "write 'a/b'"),
        ("a/", "write 'a'"),
    ],
)
def test_paths_that_lead_out_or_have_a_second_spelling_are_refused(path: str, words: str) -> None:
    fault = asset_paths.fault_of(path)
    assert fault is not None
    assert words in fault


def test_every_bad_path_of_a_job_is_named_with_its_pointer() -> None:
    with pytest.raises(HttpProblem) as caught:
        asset_paths.check(["ok", "../x", "/y"], "/assets")
    assert [fault["pointer"] for fault in caught.value.faults] == ["/assets/..~1x", "/assets/~1y"]


def test_a_file_cannot_also_be_a_folder() -> None:
    with pytest.raises(HttpProblem, match="which is a file"):
        asset_paths.check(["scene", "scene/a.xml"], "/assets")
