"""The command as a person runs it, in a process of its own, without a terminal."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import typer.main

from api.cli import main, upkeep
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


def test_every_command_is_where_the_table_says() -> None:
    commands = main._OnDemand()
    assert [name for name in main.COMMANDS if commands[name].name != name] == []
    with pytest.raises(KeyError):
        commands["no-such-command"]
    places = set(main.COMMANDS.values())
    modules = [importlib.import_module(f"api.cli.{place}") for place in places]
    offered = {
        name
        for module in modules
        for name in typer.main.get_group(_holding(module.app)).commands
        if module.__name__.removeprefix("api.cli.") not in ("access", "node", "nodes", "projects")
    }
    assert offered <= set(main.COMMANDS), "a command that the table of api.cli.main does not name"


def _holding(app: typer.Typer) -> typer.Typer:
    holder = typer.Typer()
    holder.registered_commands, holder.registered_groups = app.registered_commands, app.registered_groups
    return holder


def test_a_help_text_loads_neither_client_nor_database() -> None:
    code = (
        "import sys; from api.cli.main import app\n"
        "try: app(['jobs', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'httpx', 'sqlalchemy', 'redis', 'alembic', 'fastapi', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert "newest first" in done.stdout


def test_a_fleet_gets_its_first_key_without_an_api_and_only_one(tmp_path: Path) -> None:
    places = {"FARM_DATA": str(tmp_path / "data"), "FARM_URL": "http://farm.test:8630"}
    assert farm(tmp_path, "migrate", **places).returncode == 0
    made = farm(tmp_path, "keys", "first", **places)
    assert made.returncode == 0, made.stderr
    secret = made.stdout.strip()
    assert secret.startswith("sfk_")
    assert farm(tmp_path, "keys", "first", **places).stdout.strip() == secret, "the one in the key file"
    # somebody else, who has no key file
    other = farm(tmp_path / "other", "keys", "first", **places)
    assert (other.returncode, other.stdout) == (1, "")
    assert "farm keys make" in other.stderr


def test_what_gc_did_is_told_in_words() -> None:
    report = {"contents": 1, "bytes": 3_000_000, "strays": 2, "temporary": 0, "dry_run": False}
    told = upkeep.gc_text(report)
    assert told.startswith("removed 1 content that nothing refers to (2.9 MiB), 2 files that")
    assert told.endswith("0 unfinished uploads")
    assert upkeep.gc_text(report | {"dry_run": True}).startswith("would remove 1 content")


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
