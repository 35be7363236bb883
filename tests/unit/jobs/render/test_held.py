"""What the engine takes from a child's folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from farm.errors import TaskFailed
from jobs.render.held import Clock, take_file


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A child's folder and an attempt's scratch."""
    (tmp_path / "child").mkdir()
    (tmp_path / "scratch").mkdir()
    (tmp_path / "secret").write_text("s3cret")
    return tmp_path / "child", tmp_path / "scratch"


def test_a_plain_file_moves(folders: tuple[Path, Path]) -> None:
    child, scratch = folders
    (child / "1-beauty.png").write_bytes(b"png")
    assert take_file(child / "1-beauty.png", scratch, "frame 1").read_bytes() == b"png"
    assert not any(child.iterdir())


@pytest.mark.parametrize("how", ["symlink", "hardlink", "fifo", "folder"])
def test_anything_else_is_refused(folders: tuple[Path, Path], how: str) -> None:
    child, scratch = folders
    made, secret = child / "1-beauty.png", child.parent / "secret"
    {
        "symlink": lambda: made.symlink_to(secret),
        "hardlink": lambda: made.hardlink_to(secret),
        "fifo": lambda: os.mkfifo(made),
        "folder": lambda: made.mkdir(),
    }[how]()
    with pytest.raises(TaskFailed, match=r"frame 1: beauty\.png is not a plain file"):
        take_file(made, scratch, "frame 1: beauty.png")
    assert not any(scratch.iterdir())


def test_a_file_that_was_not_written_is_named(folders: tuple[Path, Path]) -> None:
    child, scratch = folders
    with pytest.raises(TaskFailed, match="frame 1 was not written"):
        take_file(child / "1-beauty.png", scratch, "frame 1")


def test_time_that_the_farm_holds_a_task_does_not_count_against_its_frame() -> None:
    clock = Clock(limit=0.2)
    time.sleep(0.3)
    clock.skip()
    assert not clock.spend()
    time.sleep(0.3)
    assert clock.spend()
