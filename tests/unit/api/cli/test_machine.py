"""``farm topology``, ``plan``, ``doctor``, ``neighbours discover`` and ``node install`` as they are typed."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli.main import app
from farm.errors import InvalidInput
from farm.settings import settings
from gpu_pinning import Plan, Topology, make_plan
from workers.node_folders import lock_node
from workers.placement import keep_plan

RECORDED = Path(__file__).parents[3] / "recorded_machines"
HGX, LAPTOP = RECORDED / "hgx-8gpu.json", RECORDED / "laptop.json"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for name in ("FARM_CONFIG", "FARM_BROKER_URL", "FARM_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FARM_DATA", str(tmp_path / "data"))
    yield
    settings.cache_clear()


def farm(*words: str) -> tuple[int, str, str]:
    settings.cache_clear()
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_topology_of_this_machine_can_be_planned_on(tmp_path: Path) -> None:
    code, text, _ = farm("topology", "--json")
    assert code == 0
    (tmp_path / "here.json").write_text(text)
    code, planned, _ = farm("plan", "--machine", str(tmp_path / "here.json"), "--json")
    assert code == 0
    assert Plan.parse(planned) == make_plan(Topology.parse(text))


def test_plan_shows_table_and_drawing() -> None:
    code, text, _ = farm("plan", "--machine", str(LAPTOP))
    assert code == 0
    assert "cpu-6" in text
    assert "NUMA node 0" in text


def test_plan_refusals_end_with_1_and_say_why(tmp_path: Path) -> None:
    config = tmp_path / "farm.toml"
    config.write_text('[[slots]]\nname = "big"\npools = ["video"]\ngpus = 9\n')
    code, text, _ = farm("plan", "--machine", str(HGX), "--config", str(config))
    assert code == 1
    assert "Refused: slots.big.gpus: wants 9 and 8 are free" in text


def test_a_bad_farm_toml_names_field_value_and_fix(tmp_path: Path) -> None:
    config = tmp_path / "farm.toml"
    config.write_text('[[slots]]\nname = "a"\npools = ["rendr"]\ncorse = 2\n')
    code, text, told = farm("plan", "--config", str(config))
    assert (code, text) == (1, "")
    assert "slots[0].pools[0] = 'rendr'" in told
    assert "slots[0].corse = 2: unknown field; did you mean 'cores'?" in told
    code, _, told = farm("plan", "--config", str(tmp_path / "none.toml"))
    assert code == 1
    assert "none.toml" in told


def test_diff_is_against_the_plan_of_an_agent_that_runs(tmp_path: Path) -> None:
    config = tmp_path / "farm.toml"
    config.write_text('name = "n"\n[[slots]]\nname = "cpu-0"\npools = ["render"]\ncores = 3\n')
    node = tmp_path / "data" / "run" / "nodes" / "n"
    node.mkdir(parents=True)
    keep_plan(node, make_plan(Topology.load(LAPTOP)))
    words = ("plan", "--machine", str(LAPTOP), "--config", str(config), "--diff", "--json")
    # an agent that was killed leaves its plan and its lock behind, but nothing runs, also where another
    # process has its number by now
    (node / "lock").write_text(f"{os.getpid()} 1")
    _, text, told = farm(*words)
    assert {change["name"]: change["how"] for change in json.loads(text)} == {"cpu-0": "added"}
    assert "No agent of node 'n' runs here" in told
    lock = lock_node(node / "lock", "n")
    _, text, told = farm(*words)
    os.close(lock)
    changes = {change["name"]: change["how"] for change in json.loads(text)}
    assert changes == {"cpu-0": "moved", **{f"cpu-{n}": "removed" for n in range(1, 7)}}
    assert told == ""


def test_reload_without_an_agent_or_with_a_bad_file_says_so(tmp_path: Path) -> None:
    config = tmp_path / "farm.toml"
    config.write_text('name = "n"\n')
    code, _, told = farm("node", "reload", "--config", str(config))
    assert (code, "no agent of node 'n' runs here" in told) == (1, True)
    config.write_text("[[slots]]\n")
    code, _, told = farm("node", "reload", "--config", str(config))
    assert (code, "slots[0].name" in told) == (1, True)


def test_doctor_tells_of_broker_and_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_BROKER_URL", "redis://127.0.0.1:1/0")
    code, text, _ = farm("doctor", "--json")
    checks = {item["check"]: item for item in json.loads(text)}
    assert code == 2
    assert checks["broker"]["level"] == "bad"
    assert checks["database"]["level"] == "ok"
    assert "torch" in checks and "space" in checks


def test_doctor_of_a_recorded_machine() -> None:
    code, text, _ = farm("doctor", "--machine", str(LAPTOP))
    assert code == 1
    assert "mend:   cpupower frequency-set -g performance" in text


def test_discover_lists_as_json() -> None:
    code, text, _ = farm("neighbours", "discover", "--json")
    assert code == 0
    assert isinstance(json.loads(text), list)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--user", "--print"), "'--print' is an option"),
        (("--user", "nobody-of-this-name"), "useradd --system nobody-of-this-name"),
        (("--user", "a b"), "no user is called 'a b'"),
    ],
)
def test_node_install_refuses_a_user_that_is_not_there(words: tuple[str, ...], reason: str) -> None:
    code, text, told = farm("node", "install", *words)
    assert (code, text) == (2, "")
    assert reason in " ".join(re.sub("[│╭╮╰╯─]", " ", told).split())


def test_node_install_prints_or_writes_the_unit(tmp_path: Path) -> None:
    code, text, _ = farm("node", "install", "--print", "--user", "nobody")
    assert code == 0
    assert "User=nobody" in text
    code, _, told = farm("node", "install", "--write", str(tmp_path))
    assert code == 0
    assert "systemctl daemon-reload" in told
    assert "Delegate=" in (tmp_path / "stillframe-node.service").read_text()
    code, _, told = farm("node", "install", "--write", str(tmp_path / "no" / "x.service"))
    assert code == 1
    assert "No such file" in told


def test_doctor_asks_the_database_for_its_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.sqlite3"
    sqlite3.connect(path).execute("CREATE TABLE jobs (id TEXT)").connection.close()
    monkeypatch.setenv("FARM_DATABASE_URL", f"sqlite:///{path}")
    code, text, _ = farm("doctor", "--json")
    checks = {item["check"]: item for item in json.loads(text)}
    assert (code, checks["database"]["level"]) == (2, "bad")
    assert checks["database"]["mend"]
    monkeypatch.setenv("FARM_DATABASE_URL", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    _, text, _ = farm("doctor", "--json")
    checks = {item["check"]: item for item in json.loads(text)}
    assert checks["database"]["level"] == "bad" and "does not answer" in checks["database"]["what"]


def test_node_without_a_command_is_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    settings.cache_clear()
    # without a broker it says what it needs, so it is the agent that was asked for
    result = CliRunner().invoke(app, ["node"])
    assert result.exit_code != 0
    assert isinstance(result.exception, InvalidInput)
    assert "FARM_BROKER_URL" in result.exception.message
