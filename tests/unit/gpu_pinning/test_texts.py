"""What the commands print, and what importing the package loads."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_pinning import texts
from gpu_pinning.errors import ConfigError, PinningError
from gpu_pinning.irq_moves import move_interrupts
from gpu_pinning.machine import Topology
from gpu_pinning.placement import make_plan
from gpu_pinning.plan import InterruptMove, Plan
from gpu_pinning.unit import systemd_unit
from tests.unit.gpu_pinning.trees import RECORDED, put, recorded


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FARM_CONFIG", raising=False)


def test_topology_json_is_a_recorded_machine() -> None:
    text, code = texts.topology_text(RECORDED / "mig-box.json", as_json=True)
    assert code == 0
    assert Topology.parse(text) == recorded("mig-box")


def test_topology_text_names_what_matters() -> None:
    text, _ = texts.topology_text(RECORDED / "permuted-minors.json")
    assert "bare metal" in text
    assert "/dev/nvidia3" in text
    text, _ = texts.topology_text(RECORDED / "container.json")
    assert "no right to: cpuset (Read-only file system)" in text


def test_plan_json_reads_back_and_refusals_change_the_exit_code(tmp_path: Path) -> None:
    text, code = texts.plan_text(recorded=RECORDED / "laptop.json", as_json=True)
    assert (Plan.parse(text), code) == (make_plan(recorded("laptop")), 0)
    (tmp_path / "farm.toml").write_text('[[slots]]\nname = "a"\npools = ["video"]\ngpus = 9\n')
    text, code = texts.plan_text(recorded=RECORDED / "laptop.json")
    assert code == 1
    assert "Refused: slots.a.gpus: wants 9" in text


def test_farm_toml_is_found_by_name_environment_or_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert texts.the_wishes() == texts.Wishes()
    other = tmp_path / "other.toml"
    other.write_text('name = "other"\n')
    monkeypatch.setenv("FARM_CONFIG", str(other))
    assert texts.the_wishes().name == "other"
    with pytest.raises(ConfigError):
        texts.the_wishes(tmp_path / "none.toml")


def test_plan_diff_against_what_runs() -> None:
    machine = RECORDED / "laptop.json"
    running = make_plan(recorded("laptop"))
    assert texts.plan_text(recorded=machine, running=running, as_diff=True) == ("Nothing changes.\n", 0)
    text, _ = texts.plan_text(recorded=machine, as_diff=True)
    assert text.count("+ slot cpu-") == 7
    listed, _ = texts.plan_text(recorded=machine, as_diff=True, as_json=True)
    assert {change["how"] for change in json.loads(listed)} == {"added"}


def test_no_server_found_is_said(tmp_path: Path) -> None:
    text, code = texts.neighbours_text(proc=tmp_path, machine=recorded("laptop"))
    assert (text.startswith("No language model server"), code) == (True, 0)


def test_the_unit_delegates_and_keeps_its_words(tmp_path: Path) -> None:
    text = systemd_unit(
        ["/opt/a b/farm", "node", "--x=50%", "$HOME"], environment={"A": 'say "hi"'}, user="farm"
    )
    assert "Delegate=cpu cpuset io memory pids" in text
    assert "DelegateSubgroup=agent" in text
    # the agent alone hears of a changed farm.toml; its slots would end
    assert "ExecReload=/bin/kill -s HUP $MAINPID" in text
    assert 'ExecStart="/opt/a b/farm" node --x=50%% $$HOME' in text
    assert 'Environment="A=say \\"hi\\""' in text
    for bad in ([], ["farm"], ["/farm\nExecStart=/bin/sh"]):
        with pytest.raises(PinningError):
            systemd_unit(bad)


def test_the_farm_weighs_little_unless_a_server_runs_inside_its_unit(tmp_path: Path) -> None:
    config = tmp_path / "farm.toml"
    config.write_text('[[neighbours]]\nname = "llm"\nurl = "http://127.0.0.1:8000"\ncores = 1\n')
    lines = texts.unit_text(config, farm="/opt/farm")[0].splitlines()
    assert "CPUWeight=20" in lines and "IOWeight=20" in lines
    config.write_text('[[neighbours]]\nname = "llm"\ncommand = ["vllm", "serve"]\ncores = 1\n')
    assert "Weight=" not in texts.unit_text(config, farm="/opt/farm")[0]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "stillframe-node.service"
    path.write_text(texts.unit_text(farm="/bin/true")[0])
    done = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if "stillframe-node.service" in line]
    # An older systemd does not know DelegateSubgroup; the agent then moves itself.
    assert [line for line in complaints if "DelegateSubgroup" not in line] == []


def test_interrupts_are_moved_and_read_back(tmp_path: Path) -> None:
    put(tmp_path, "proc/irq/7/smp_affinity_list", "0-3")
    move = InterruptMove(irq=7, name="x", device=None, from_cpus=(0, 1, 2, 3), to_cpus=(2, 3), why="")
    (tmp_path / "proc/irq/7/smp_affinity_list").write_text("")
    (row,) = move_interrupts((move,), tmp_path)
    assert (row.ok, row.found) == (True, "2-3")
    (row,) = move_interrupts((move.model_copy(update={"irq": 8}),), tmp_path)
    assert (row.ok, row.error) == (False, "No such file or directory")


def test_the_package_stands_alone_and_loads_neither_nvml_nor_torch() -> None:
    code = (
        "import sys, gpu_pinning, gpu_pinning.texts, gpu_pinning.mig;"
        "print([m for m in sys.modules if m.split('.')[0] in "
        "('farm', 'jobs', 'api', 'workers', 'pynvml', 'torch', 'rich', 'typer', 'celery', 'sqlalchemy')])"
    )
    root = Path(texts.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "[]"
