"""The scripts of the proof on GPUs: they refuse at once where there are none, and judge what they saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.stillness_proof import Findings, Proof

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("script", "words"),
    [("stillness_gpu.py", "1 NVIDIA GPU needed"), ("stillness_two_gpus.py", "2 NVIDIA GPUs needed")],
)
def test_without_gpus_the_script_says_so_and_ends_with_three(tmp_path: Path, script: str, words: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "benchmarks" / script), "--out", str(tmp_path)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = json.loads((tmp_path / "report.json").read_text())
    if found["runs"]:
        pytest.skip("this machine has GPUs")
    assert done.returncode == 3, done.stderr
    assert "everything" in found["not_run"][0]
    assert words in done.stdout or "CUDA" in done.stdout
    assert found["figures"] == []


def test_an_unknown_part_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        Proof("x", 1, ["--parts", "graph,video", "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert "video is none of cores, graph" in capsys.readouterr().err


def ratio(value: float, upper: float) -> dict[str, float]:
    return {"value": value, "lower": value, "upper": upper}


def report(upper: float, control: float, kept: float) -> dict[str, Any]:
    arm = {"p50": ratio(1.0, 1.0), "p99": ratio(1.0, upper), "p999": 1.0}
    return {
        "verdict": "still",
        "decode": {"launch_share": 0.9},
        "reasons": [""],
        "arms": {"farm": arm, "control": {"p50": ratio(control, control), "p99": ratio(control, control)}},
        "throughput": {"ratio": {"encode": kept}, "told_apart": {"encode": None}},
        "guard": {"held_share": 0.0, "cpu_share": 0.004},
        "steal": {}, "decode_cpus_busy": {}, "decode_waited": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("upper", "control", "kept", "code"),
    [(1.004, 2.2, 0.97, 0), (1.02, 2.2, 0.97, 1), (1.004, 1.2, 0.97, 1), (1.004, 2.2, 0.80, 1)],
)
def test_each_goal_can_be_missed(
    tmp_path: Path, upper: float, control: float, kept: float, code: int
) -> None:
    proof = Proof("x", 1, ["--out", str(tmp_path)])
    proof._judge("graph", report(upper, control, kept))
    assert proof.found.code == code


def test_a_run_without_a_verdict_is_not_a_success(tmp_path: Path) -> None:
    proof = Proof("x", 1, ["--out", str(tmp_path)])
    proof._judge("graph", report(1.0, 2.0, 1.0) | {"verdict": "inconclusive", "reasons": ["no rest"]})
    assert proof.found.code == 3 and "no rest" in proof.found.table()


def test_what_is_known_is_on_disk_after_each_part(tmp_path: Path) -> None:
    found = Findings(tmp_path, 0.0)
    found.add("first", 1.0, "", None)
    found.save()
    found.add("second", 2.0, "", None)
    assert [f["figure"] for f in json.loads((tmp_path / "report.json").read_text())["figures"]] == ["first"]
