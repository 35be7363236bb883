"""Two agents on one machine never give out the same core, whatever they are called. Real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farm.settings import Settings
from gpu_pinning.claims import claims
from tests.chaos.farm_under_test import ROOT, until
from tests.integration.workers.placed_farm import PlacedFarm

SLOT = '[[slots]]\nname = "{0}"\npools = ["render"]\ncpus = "{1}"\n'


def farm_command(folder: Path, settings: Settings, *words: str) -> tuple[int, str]:
    """A ``farm`` command for a node with a data folder and a name of its own; exit code and all it says."""
    (folder / "data").mkdir(exist_ok=True)
    environment = os.environ | {
        "FARM_DATA": str(folder / "data"),
        "FARM_CONFIG": str(folder / "farm.toml"),
        "FARM_MACHINE_CLAIMS": "true",
        "FARM_DATABASE_URL": settings.database_url,
        "FARM_BROKER_URL": settings.broker_url,
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", "api.cli.main", *words],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_a_second_agent_is_refused_the_first_ones_cores_and_may_have_others(
    settings: Settings, sqlite_url: str, redis_url: str, tmp_path: Path
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    update = {"database_url": sqlite_url, "broker_url": redis_url, "machine_claims": True}
    farm = PlacedFarm(settings.model_copy(update=update), slots=1)
    farm.node_toml = SLOT.format("a", cpus[0])
    other = tmp_path / "other"
    other.mkdir()
    with farm:
        first = farm.agents["one"].pid
        mine = [claim for claim in claims() if claim.pid == first]
        assert [(claim.node, claim.cpus) for claim in mine] == [("one", frozenset({cpus[0]}))]
        # another name, another folder: the cores are the same
        (other / "farm.toml").write_text('name = "two"\n' + SLOT.format("b", f"{cpus[0]},{cpus[1]}"))
        why = f"CPUs {cpus[0]} are given out already by the agent of node 'one' (pid {first})"
        for words, expected in ((("plan",), 1), (("doctor",), 2)):
            code, text = farm_command(other, farm.settings, *words)
            assert (code, why in text, "have none in common" in text) == (expected, True, True), text
        code, text = farm_command(other, farm.settings, "node")
        assert code != 0 and why in text and 'name CPUs (`cpus = "0-3"`)' in text, text
        # and a running one does not take another's cores by a changed farm.toml
        (other / "farm.toml").write_text('name = "two"\n' + SLOT.format("b", cpus[1]))
        assert why not in farm_command(other, farm.settings, "plan")[1]
        # what it gives up is free once its slot has moved
        farm.apply(SLOT.format("a", cpus[1]))
        until(lambda: [c.cpus for c in claims() if c.pid == first] == [frozenset({cpus[1]})], "it has moved")
    assert [claim for claim in claims() if claim.pid == first] == []
