"""Which Blender a node has, which one a job gets, and what is said where there is none."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from farm.errors import DeviceUnavailable, InvalidInput, NotInstalled
from farm.scheduler.fit import fits
from jobs.render.blender import installation


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A file that can be run; nothing here runs it."""
    path = tmp_path / "blender"
    path.touch(mode=0o755)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's folder for Blenders, still empty; no program is named."""
    monkeypatch.setenv("FARM_BLENDER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FARM_BLENDER", raising=False)
    return tmp_path / "home"


def wheel(home: Path) -> None:
    """What an installed wheel looks like."""
    (home / "bpy-4.5" / "bin").mkdir(parents=True)
    (home / "bpy-4.5" / ".complete").touch()


def test_a_job_gets_the_version_that_it_names_or_the_newest(
    home: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as numbers: 4.10 is newer than 4.9
    monkeypatch.setenv("FARM_BLENDER", f"4.9={program}, 4.10={program},4.2={program}")
    assert installation.choose(None).version == "4.10"
    assert installation.choose("4.2").version == "4.2"
    with pytest.raises(DeviceUnavailable, match=r"4\.4 was asked for, but this node has 4\.10, 4\.2, 4\.9"):
        installation.choose("4.4")


def test_a_node_without_blender_says_how_to_get_one(home: Path) -> None:
    with pytest.raises(DeviceUnavailable, match=r"no Blender: run `farm blender install`.*FARM_BLENDER"):
        installation.choose(None)


@pytest.fixture
def closed_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an installed wheel, inside somebody else's home folder; we are an ordinary user."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        closed = Path(name) / "somebody"
        wheel(closed / "blender")
        closed.chmod(0o000)
        monkeypatch.setenv("FARM_BLENDER_HOME", str(closed / "blender"))
        monkeypatch.delenv("FARM_BLENDER", raising=False)
        root = os.geteuid() == 0
        Path(name).chmod(0o755)
        try:
            if root:
                os.seteuid(65534)
            yield closed / "blender"
        finally:
            if root:
                os.seteuid(0)
            closed.chmod(0o700)


def test_a_folder_that_cannot_be_read_is_as_one_without_a_blender_and_is_told_once(
    closed_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = f"{closed_home}/bpy-4.5 cannot be read (Permission denied)"
    with capture_logs() as logs:
        assert [installation.versions(), installation.versions()] == [[], []]
    assert [entry["reason"].startswith(why) for entry in logs] == [True]
    with pytest.raises(DeviceUnavailable, match=r"no Blender: .*cannot be read .*FARM_BLENDER_HOME"):
        installation.choose(None)
    with pytest.raises(NotInstalled, match=r"Permission denied.*FARM_BLENDER_HOME"):
        installation.install(say=print)
    monkeypatch.setenv("FARM_BLENDER", f"4.2={shutil.which('true')}")
    assert installation.versions() == ["4.2"], "one that is named is offered all the same"


def test_a_program_that_is_named_wins_over_the_wheel_of_its_version(
    home: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(home)
    assert installation.choose("4.5").command[0] == str(home / "bpy-4.5" / "bin" / "python")
    monkeypatch.setenv("FARM_BLENDER", f"4.5={program}")
    command = installation.choose("4.5").command
    assert command[0] == str(program)
    # nothing of the file's or the user's own runs
    assert {"--background", "--factory-startup", "--disable-autoexec"} <= set(command)


def test_a_wheel_that_was_not_installed_to_its_end_does_not_count(home: Path) -> None:
    wheel(home)
    (home / "bpy-4.5" / ".complete").unlink()
    assert installation.installed() == {}


@pytest.mark.parametrize("named", ["/opt/blender", "four=/opt/blender", "4.5=", "4.5=/nowhere/blender"])
def test_a_wrong_setting_is_refused(home: Path, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_BLENDER", named)
    with pytest.raises(InvalidInput, match="FARM_BLENDER"):
        installation.installed()


def test_the_wheel_takes_python_3_11_alone_and_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 1))
    monkeypatch.setattr(shutil, "which", lambda name: "/opt/bin/python3.11" if name == "python3.11" else None)
    assert installation.find_python() == Path("/opt/bin/python3.11")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(NotInstalled, match=r"needs Python 3\.11.*python3\.11-venv"):
        installation.install(home)
    assert installation.installed() == {}


def test_a_node_offers_its_versions_and_none_where_the_setting_is_wrong(
    home: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(home)
    monkeypatch.setenv("FARM_BLENDER", f"4.2={program}")
    assert installation.versions() == ["4.2", "4.5"]
    monkeypatch.setenv("FARM_BLENDER", "blender")
    assert installation.versions() == []


def test_a_node_offers_the_gpus_that_its_administrator_names_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FARM_BLENDER_DEVICES", raising=False)
    assert installation.backends() == []
    assert not fits({"blender_devices": "hip"}, {"kind": "cuda", "blender_devices": []})
    monkeypatch.setenv("FARM_BLENDER_DEVICES", "oneapi, hip,metal")
    with capture_logs() as said:
        assert installation.backends() == ["hip", "oneapi"]
        installation.backends()
    (line,) = said
    assert line["reason"] == "FARM_BLENDER_DEVICES: 'metal' is none of hip, oneapi"
    assert fits({"blender_devices": "hip"}, {"kind": "cpu", "blender_devices": installation.backends()})
