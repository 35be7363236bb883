"""farm.toml: read, or refused with the field that is at fault."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farm.errors import InvalidInput
from workers.node_config import default_node, parse_cpus, read_node_config
from workers.placement import place


def test_without_a_file_there_is_one_slot_per_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 6})
    slots = default_node().slots
    assert [(slot.name, slot.cpus, slot.threads) for slot in slots] == [
        ("cpu-0", "0,1", 2),
        ("cpu-1", "2,3,6", 3),
    ]
    assert slots[0].pools == ["render", "encode", "nerf", "video"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4})
    assert [slot.cpus for slot in default_node().slots] == ["4"]


def test_file_is_read(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    path = tmp_path / "farm.toml"
    path.write_text(
        f'name = "attic"\n[budgets]\nspool = 1000\n'
        f'[[slots]]\nname = "a"\npools = ["encode"]\ncpus = "{core}"\nnice = 7\nenvironment = {{ X = "1" }}\n'
    )
    config = read_node_config(path)
    assert (config.name, config.budgets) == ("attic", {"spool": 1000})
    placed = place(config.slots[0])
    assert (placed.cpus, placed.nice, placed.device) == (frozenset({core}), 7, {"kind": "cpu", "threads": 1})
    assert placed.environment["X"] == "1"
    assert placed.environment["OMP_NUM_THREADS"] == "1"
    assert placed.environment["CUDA_VISIBLE_DEVICES"] == "", "a CPU slot sees no GPU"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = 'a b'", "/name"),
        ("slotz = []", "/slotz"),
        ("[[slots]]\nname='a'\npools=[]", "/slots/0/pools"),
        ("[[slots]]\nname='a'\npools=['x','x']", "twice"),
        ("[[slots]]\nname='a'\npools=['x']\n[[slots]]\nname='a'\npools=['x']", "two slots are called 'a'"),
        ("[[slots]]\nname='a'\npools=['x']\ncpus='3-1'", "list of cores"),
        ("[[slots]]\nname='a'\npools=['x']\ncpus='9999'", "may not use"),
        ("[budgets]\nspool=-1", "/budgets/spool"),
        ("[budgets]\ntape=1", "/budgets/tape"),
        ("name = ", "TOML"),
    ],
)
def test_fault_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "farm.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"farm\.toml") as caught:
        read_node_config(path)
    assert words in caught.value.message


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="FARM_CONFIG"):
        read_node_config(tmp_path / "farm.toml")


def test_core_lists() -> None:
    assert parse_cpus("0-3, 8") == {0, 1, 2, 3, 8}
