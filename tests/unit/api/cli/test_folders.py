"""Folders to write to: refused by the option's name before a farm is asked."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli.folders import check_folder
from api.cli.main import app
from farm.errors import InvalidInput


def test_a_folder_that_is_there_or_can_be_made_is_taken_and_not_made(tmp_path: Path) -> None:
    check_folder(tmp_path, "--output")
    check_folder(tmp_path / "a" / "b", "--output")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_file_in_the_way_is_named(tmp_path: Path, below: str) -> None:
    file = tmp_path / "film.mp4"
    file.touch()
    words = f"--output {file / below}: {file} is a file; name a folder"
    with pytest.raises(InvalidInput, match=re.escape(words)):
        check_folder(file / below, "--output")


def test_a_link_to_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(InvalidInput, match="link is a file; name a folder"):
        check_folder(tmp_path / "link", "--output")


def test_a_name_that_is_too_long_is_an_error_of_the_option(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--output .*too long; name another folder"):
        check_folder(tmp_path / ("x" * 300), "--output")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_right_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidInput, match="you may not write in"):
        check_folder(tmp_path / "out", "--output")


@pytest.mark.parametrize(
    "arguments",
    [
        ["download", "job_" + "0" * 32, "-o"],
        ["submit", "probe", "x", "--watch", "--download"],
        ["demo", "--output"],
        ["bench", "stillness", "--out"],
    ],
)
def test_each_command_refuses_a_file_before_it_asks_a_farm(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a farm that is not there: asking it would be the error
    monkeypatch.setenv("FARM_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("FARM_KEY", "sfk_x")
    file = tmp_path / "taken"
    file.touch()
    found = CliRunner().invoke(app, [*arguments, str(file)])
    assert isinstance(found.exception, InvalidInput), found.output
    assert "is a file; name a folder" in str(found.exception)
