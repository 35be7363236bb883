"""The command as a person runs it, in a process of its own, without a terminal."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from api.cli.running.children import farm_command, farm_environment, parent


def farm(tmp_path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = farm_environment({"XDG_CONFIG_HOME": str(tmp_path / "config"), **environment})
    env.pop(parent.VARIABLE)
    env.pop("FARM_KEY_FILE", None)
    return subprocess.run(
        farm_command(*words), env=env, capture_output=True, text=True, timeout=120, check=False
    )


NOWHERE = {"FARM_URL": "http://127.0.0.1:9", "FARM_KEY": "sfk_x"}


def test_help_names_every_command(tmp_path: Path) -> None:
    done = farm(tmp_path, "--help", COLUMNS="120")
    assert done.returncode == 0
    wanted = (
        "up api scheduler node submit jobs job watch frames logs cancel retry pause resume prioritise why "
        "download nodes slots pools projects buffers keys gc init-db migrate demo"
    )
    missing = [name for name in wanted.split() if f" {name} " not in done.stdout]
    assert missing == []


def test_without_a_key_it_says_how_to_get_one(tmp_path: Path) -> None:
    done = farm(tmp_path, "jobs")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "farm up" in done.stderr
    assert "FARM_KEY" in done.stderr


def test_a_farm_that_is_away_is_exit_code_1(tmp_path: Path) -> None:
    done = farm(tmp_path, "jobs", "--json", **NOWHERE)
    assert done.returncode == 1
    assert "http://127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["jobs", "--colour"],
        ["prioritise", "job_1", "200"],
        ["submit"],
        ["submit", "render"],
        ["submit", "render", "x.xml", "--download", "out"],
        ["download", "job_1", "--films", "--frames", "1-3"],
        ["nonsense"],
        ["demo", "--only", "opera"],
    ],
)
def test_a_wrong_command_line_is_exit_code_2(tmp_path: Path, words: list[str]) -> None:
    done = farm(tmp_path, *words, **NOWHERE)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr != ""


def test_without_a_terminal_there_are_no_control_characters(tmp_path: Path) -> None:
    done = farm(tmp_path, "jobs", TERM="xterm-256color", **NOWHERE)
    assert "\x1b" not in done.stdout + done.stderr


def test_processes_that_need_a_broker_say_so(tmp_path: Path) -> None:
    for name in ("api", "scheduler", "node"):
        done = farm(
            tmp_path, name, FARM_DATA=str(tmp_path / "data"), FARM_LISTEN="127.0.0.1:0", FARM_BROKER_URL=""
        )
        assert done.returncode == 1
        assert "FARM_BROKER_URL" in done.stderr
        assert "farm up" in done.stderr


def test_the_database_is_made_and_brought_up(tmp_path: Path) -> None:
    done = farm(tmp_path, "init-db", FARM_DATA=str(tmp_path / "data"), FARM_DATABASE_URL="")
    assert done.returncode == 0, done.stderr
    assert "schema none -> " in done.stderr
    again = farm(tmp_path, "migrate", FARM_DATA=str(tmp_path / "data"), FARM_DATABASE_URL="")
    assert again.returncode == 0
    assert "none" not in again.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_their_completion(tmp_path: Path, shell: str) -> None:
    environment = {"_FARM_COMPLETE": f"source_{shell}", **NOWHERE}
    code = "import sys; sys.argv = ['farm']; from api.cli.main import main; main()"
    env = {**farm_environment(environment)}
    env.pop(parent.VARIABLE)
    words = [farm_command()[0], "-c", code]
    done = subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=120, check=False, cwd=os.sep
    )
    assert done.returncode == 0, done.stderr
    assert "_FARM_COMPLETE" in done.stdout
