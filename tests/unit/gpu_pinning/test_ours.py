"""A plan made while slots run: what they have in use is theirs to be planned, what strangers have is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_pinning import texts
from gpu_pinning.machine import GpuProcess, Topology
from gpu_pinning.ours import slot_processes, without_slots
from gpu_pinning.placement import make_plan
from gpu_pinning.wishes import Wishes
from tests.unit.gpu_pinning.trees import recorded

WISHES = Wishes.parse('[[slots]]\nname = "g"\npools = ["video"]\ngpus = 1\ncount = 2\n')
FIRST, SECOND = "0000:01:00.0", "0000:43:00.0"


def in_use(**listed: tuple[int, ...]) -> Topology:
    """The one-socket box with these processes on its first and second GPU, 20 GiB in use on each of them."""
    machine = recorded("pcie-4gpu")
    pids = {FIRST: listed["first"], SECOND: listed["second"]}
    gpus = tuple(
        gpu.model_copy(
            update={
                "memory_used_bytes": (20 << 30) if pids.get(gpu.pci) else 0,
                "processes": tuple(
                    GpuProcess(pid=pid, kind="compute", name="python", memory_bytes=20 << 30)
                    for pid in pids.get(gpu.pci, ())
                ),
            }
        )
        for gpu in machine.gpus
    )
    return machine.model_copy(update={"gpus": gpus})


def environ(proc: Path, pid: int, **variables: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "environ").write_text("\0".join(f"{k}={v}" for k, v in variables.items()))


def test_slots_at_work_do_not_push_themselves_off_their_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = make_plan(in_use(first=(), second=()), WISHES)
    assert [slot.pci for slot in running.slots] == [(FIRST,), (SECOND,)]
    machine = in_use(first=(11, 12), second=(13,))
    environ(tmp_path, 11, STILLFRAME_SLOT="g-0")
    environ(tmp_path, 12, STILLFRAME_SLOT="g-0")
    environ(tmp_path, 13, STILLFRAME_SLOT="g-1")
    ours = slot_processes(machine, running.by_name, tmp_path)
    assert ours == {11, 12, 13}
    # without knowing them they are strangers, and the slots would be planned elsewhere
    assert [slot.pci[0] for slot in make_plan(machine, WISHES).slots] == ["0000:44:00.0", "0000:81:00.0"]
    assert make_plan(without_slots(machine, running.by_name, ours), WISHES) == running

    # and so it is at the command, whose machine is the one it runs on
    monkeypatch.setattr(texts.topology, "read", lambda: machine)
    monkeypatch.setattr(texts, "discover_neighbours", lambda machine: ())
    monkeypatch.setattr(
        texts, "slot_processes", lambda machine, slots: slot_processes(machine, slots, tmp_path)
    )
    config = tmp_path / "farm.toml"
    config.write_text('[[slots]]\nname = "g"\npools = ["video"]\ngpus = 1\ncount = 2\n')
    assert texts.plan_text(config, running=running, as_diff=True) == ("Nothing changes.\n", 0)


@pytest.mark.parametrize(
    "variables",
    [None, {}, {"STILLFRAME_SLOT": "g-1"}, {"STILLFRAME_SLOT": "other-farm"}],
    ids=["not readable", "no slot", "the slot of another GPU", "another farm's slot"],
)
def test_a_stranger_beside_a_slot_stays_one(variables: dict[str, str] | None, tmp_path: Path) -> None:
    running = make_plan(in_use(first=(), second=()), WISHES)
    machine = in_use(first=(11, 66), second=())
    environ(tmp_path, 11, STILLFRAME_SLOT="g-0")
    if variables is not None:
        environ(tmp_path, 66, **variables)
    ours = slot_processes(machine, running.by_name, tmp_path)
    assert ours == {11}
    seen = without_slots(machine, running.by_name, ours)
    assert [p.pid for p in seen.gpus[0].processes or ()] == [66]
    assert FIRST not in {slot.pci[0] for slot in make_plan(seen, WISHES).slots}
