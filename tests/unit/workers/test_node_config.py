"""farm.toml as the node agent reads it, and what the plan of a node tells the database."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.cli.fleet import fence_text
from farm.errors import InvalidInput
from farm.scheduler.fit import fits
from gpu_pinning import Wishes, make_plan
from gpu_pinning.group import Setting
from gpu_pinning.machine import Topology
from tests.unit.gpu_pinning.trees import recorded
from workers.node_config import NodeConfig, read_node_config
from workers.placement import Seating, device_of, node_info
from workers.registration import vram_budget


def seating(machine: Topology, text: str = "") -> Seating:
    wishes = Wishes.parse(text)
    return Seating(NodeConfig(wishes), machine, make_plan(machine, wishes))


def test_without_a_file_the_node_is_a_default_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = read_node_config(None)
    assert (config.wishes, config.path, config.budgets) == (Wishes(), None, {})
    assert config.name


def test_a_file_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "farm.toml").write_text('name = "attic"\n[budgets]\nspool = "1 KiB"\n')
    monkeypatch.chdir(tmp_path)
    config = read_node_config(None)
    assert (config.name, config.budgets) == ("attic", {"spool": 1024})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = 'a b'", "/name"),
        ("slotz = []", "/slotz"),
        ("[[slots]]\nname='a'\npools=[]", "/slots/0/pools"),
        ("[[slots]]\nname='a'\npools=['render','render']", "twice"),
        ("[[slots]]\nname='a'\npools=['render']\n[[slots]]\nname='a'\npools=['render']", "'a' stands twice"),
        ("[[slots]]\nname='a'\npools=['render']\ncpus='3-1'", "/slots/0/cpus"),
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


def test_a_slot_tells_its_class_and_reason_and_fits_what_asks_for_cuda() -> None:
    # One neighbour on socket 0 that is held there; the GPU slot goes to socket 1 and shares nothing.
    text = (
        '[[neighbours]]\nname = "d"\ngpus = ["0000:19:00.0"]\ncpus = "0-31,256-287"\n'
        '[[slots]]\nname = "v"\npools = ["video"]\ngpus = 1\n'
        '[[slots]]\nname = "c"\npools = ["encode"]\ncpus = "40-43,296-299"\n'
    )
    seated = seating(recorded("hgx-8gpu"), text)
    video = device_of(seated, seated.plan.slot("v"))
    assert (video["kind"], video["class"], video["share"]) == ("cuda", "A", None)
    assert video["uuid"] == seated.plan.slot("v").gpus[0]
    assert fits({"device": "cuda", "min_vram": video["vram"]}, video)
    assert not fits({"min_vram": video["vram"] + 1}, video)
    encode = device_of(seated, seated.plan.slot("c"))
    assert (encode["kind"], encode["class"], encode["cpus"]) == ("cpu", "B", "40-43,296-299")
    assert "beside d" in encode["class_reason"] and encode["raise_by"]
    assert not fits({"device": "cuda"}, encode)
    assert vram_budget(seated) == {"vram": video["vram"]}


def test_a_slot_tells_its_weight_where_there_is_a_right_to_weigh() -> None:
    text = '[[slots]]\nname = "c"\npools = ["encode"]\n'
    seated = seating(recorded("virtual-machine"), text)
    device = device_of(seated, seated.plan.slot("c"))
    assert device["fence"]["cpu_weight"] == 20
    assert ", weight 20" in fence_text(device)
    seated = seating(recorded("one_h200"), text)
    device = device_of(seated, seated.plan.slot("c"))
    assert device["fence"]["cpu_weight"] is None and "weight" not in fence_text(device)


def test_labels_say_weak_and_not_fenced_with_the_reason() -> None:
    machine = recorded("hgx-8gpu").model_copy(update={"cgroups": (), "device_fence": "none"})
    seated = seating(machine, '[[slots]]\nname = "c"\npools = ["encode"]\n')
    device = device_of(seated, seated.plan.slot("c"))
    assert device["labels"] == ["weak", "not fenced"]
    assert any("affinity" in reason for reason in device["label_reasons"])


def test_what_the_launcher_found_counts_more_than_the_plan() -> None:
    seated = seating(recorded("hgx-8gpu"), '[[slots]]\nname = "c"\npools = ["encode"]\n')
    slot = seated.plan.slot("c")
    assert "not fenced" not in device_of(seated, slot)["labels"]
    opened = Setting(what="devices", wanted="[]", found='["/dev/nvidia0 opens"]', ok=False)
    device = device_of(seated, slot, [opened])
    assert "not fenced" in device["labels"]
    assert any("/dev/nvidia0 opens" in reason for reason in device["label_reasons"])


def test_gpus_in_use_are_told_with_the_lines_that_declare_their_user() -> None:
    machine = recorded("hgx-8gpu")
    used = machine.gpus[0].model_copy(update={"memory_used_bytes": machine.gpus[0].memory_bytes // 2})
    seated = seating(machine.model_copy(update={"gpus": (used, *machine.gpus[1:])}))
    [told] = node_info(seated)["gpus_in_use"]
    assert told["uuid"] == used.uuid and "50%" in told["reason"]
    declared = Wishes.parse(told["toml"])
    assert declared.neighbours[0].gpus == (used.uuid,)
