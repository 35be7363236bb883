"""Room on a node's disks: what is seen, how it is told, and who is blamed when there is none."""

from __future__ import annotations

import errno
import os
import types
from pathlib import Path

import pytest

from farm.errors import DeviceUnavailable, NotInstalled, OutOfSpace, PermanentFailure
from farm.records import AttemptReport
from farm.states import AttemptState
from workers import disks as disks_module
from workers.blame import blame_disk, describe
from workers.disks import Disks, local_folder

MIB = 1 << 20


def _statvfs(monkeypatch: pytest.MonkeyPatch, *, free: int, inodes: int = 1_000_000) -> None:
    """Every disk has so many bytes and inodes free."""
    info = types.SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_files=2_000_000, f_favail=inodes)
    monkeypatch.setattr(disks_module.os, "statvfs", lambda folder: info)


def test_a_disk_below_the_floor_is_named_with_its_bytes_and_the_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = Disks([tmp_path], 8 * MIB)
    _statvfs(monkeypatch, free=8 * MIB)
    assert disks.short() is None
    _statvfs(monkeypatch, free=7 * MIB)
    told = disks.short() or ""
    assert f"{tmp_path} has 7,340,032 bytes free, the floor is 8,388,608" in told
    assert "farm gc" in told
    # the floor and a margin that is at most the floor again
    assert "work goes on at 16,777,216:" in told


def test_work_begins_again_only_a_margin_above_the_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = Disks([tmp_path], 8 * MIB)
    _statvfs(monkeypatch, free=15 * MIB)
    assert disks.short() is None
    assert "bytes free" in (disks.refuses() or "")
    _statvfs(monkeypatch, free=16 * MIB)
    assert disks.refuses() is None
    assert list(tmp_path.iterdir()) == [], "the probe leaves nothing"


def test_a_disk_without_inodes_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _statvfs(monkeypatch, free=1 << 40, inodes=3)
    assert "3 inodes left" in (Disks([tmp_path], 1).short() or "")


def test_a_quota_that_no_figure_shows_is_found_by_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def over_quota(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(disks_module.os, "posix_fallocate", over_quota)
    disks = Disks([tmp_path], 1)
    assert disks.short() is None
    assert "takes no more bytes" in (disks.refuses() or "")
    assert list(tmp_path.iterdir()) == []


def test_two_folders_of_one_disk_are_looked_at_once(tmp_path: Path) -> None:
    assert Disks([tmp_path / "a", tmp_path / "b"], 1).folders == (tmp_path / "a",)


@pytest.mark.parametrize(
    ("url", "folder"),
    [("/mnt/farm", Path("/mnt/farm")), ("file:///mnt/farm", Path("/mnt/farm")), ("s3://bucket/farm", None)],
)
def test_only_a_store_that_is_a_folder_has_a_disk_here(url: str, folder: Path | None) -> None:
    assert local_folder(url) == folder


# --- blame ---------------------------------------------------------------------------------------------


def _report(error: Exception) -> AttemptReport:
    report = AttemptReport("task", 1, "att", AttemptState.FAILED, 0.0)
    describe(error, report)
    return report


class _Full(Disks):
    def __init__(self, short: str | None, refuses: str | None) -> None:
        super().__init__()
        self.short = lambda: short  # type: ignore[method-assign]
        self.refuses = lambda: refuses  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "error",
    [
        OutOfSpace("the store is full"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        RuntimeError("the renderer ended: write error: No space left on device"),
    ],
)
def test_an_attempt_that_found_no_room_is_free(error: Exception) -> None:
    report = _report(error)
    assert (report.state, report.charged) == (AttemptState.FAILED, True)
    assert blame_disk(report, _Full(None, "the disk is full")) == "the disk is full"
    assert (report.state, report.charged, report.error_type) == (
        AttemptState.INTERRUPTED,
        False,
        "out-of-space",
    )


def test_an_attempt_that_filled_the_disk_by_itself_is_charged() -> None:
    report = _report(OutOfSpace("the store is full"))
    assert blame_disk(report, _Full(None, None)) is None
    assert (report.state, report.charged) == (AttemptState.FAILED, True)


def test_another_failure_is_the_disks_only_while_it_is_below_the_floor() -> None:
    for short, state in ((None, AttemptState.FAILED), ("full", AttemptState.INTERRUPTED)):
        report = _report(DeviceUnavailable("the renderer ended with exit 1"))
        blame_disk(report, _Full(short, "full"))
        assert report.state is state


@pytest.mark.parametrize(("module", "extra"), [("mitsuba.parser", "render"), ("torch", "video")])
def test_a_module_that_is_not_installed_fails_at_once_and_names_the_extra(module: str, extra: str) -> None:
    report = _report(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert (report.state, report.permanent, report.error_type) == (AttemptState.FAILED, True, "not-installed")
    assert f"pip install 'stillframe[{extra}]'" in (report.error or "")


@pytest.mark.parametrize("error", [PermanentFailure("a bad scene"), NotInstalled("pip install it")])
def test_a_permanent_failure_stays_one_on_a_full_disk(error: Exception) -> None:
    report = _report(error)
    assert report.permanent
    assert blame_disk(report, _Full("full", "full")) is None
    assert report.state is AttemptState.FAILED
