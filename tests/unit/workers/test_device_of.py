"""What a node tells of its slots, and whether the work that wants such a slot finds it."""

from __future__ import annotations

from pathlib import Path

from farm.scheduler.fit import fits
from gpu_pinning.placement import make_plan
from gpu_pinning.topology import Topology
from gpu_pinning.wishes import Wishes
from workers.node_config import NodeConfig
from workers.placement import Seating, device_of

TWO = Path(__file__).parents[2] / "recorded_machines" / "two_h200.json"


def test_a_slot_of_two_gpus_takes_a_gang_and_a_slot_of_one_does_not() -> None:
    machine = Topology.load(TWO)
    first, second = (gpu.uuid for gpu in machine.gpus)
    counts = {}
    for name, gpus in (("pair", [first, second]), ("one", [first])):
        listed = ", ".join(f'"{uuid}"' for uuid in gpus)
        wishes = Wishes.parse(
            f'name = "n"\n[[slots]]\nname = "{name}"\npools = ["video"]\ngpus = [{listed}]\n'
        )
        plan = make_plan(machine, wishes)
        device = device_of(Seating(NodeConfig(wishes), machine, plan), plan.slots[0])
        counts[name] = device["gpu_count"]
        gang = {"device": "cuda", "min_gpu_count": 2}
        assert fits(gang, device) is (name == "pair")
        assert fits({"device": "cuda"}, device)
    assert counts == {"pair": 2, "one": 1}
