"""What holds for every machine and every wish: random machines, neighbours and slots."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_pinning.machine import (
    Cache,
    CgroupRight,
    Core,
    Gpu,
    KernelFlags,
    MemoryNode,
    PciDevice,
    PcieLink,
    Topology,
)
from gpu_pinning.placement import make_plan
from gpu_pinning.plan import Plan
from gpu_pinning.wishes import Wishes

GIB = 1 << 30


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    nodes = draw(st.integers(1, 3))
    per_node = draw(st.integers(1, 8))
    per_llc = draw(st.sampled_from([1, 2, 4, 8]))
    threads = draw(st.integers(1, 2))
    known = draw(st.booleans())
    total = nodes * per_node
    cores, caches = [], {}
    for core in range(total):
        cpus = tuple(core + total * t for t in range(threads))
        node = core // per_node
        llc = node * 100 + core % per_node // per_llc
        caches.setdefault(llc, []).extend(cpus)
        cores.append(Core(id=core, package=node, die=0, node=node if known else None, llc=llc, cpus=cpus))
    all_cpus = [cpu for core in cores for cpu in core.cpus]
    allowed = draw(st.one_of(st.just(all_cpus), st.lists(st.sampled_from(all_cpus), min_size=1, unique=True)))
    gpus, pci = [], []
    for number in range(draw(st.integers(0, 6))):
        node = draw(st.integers(0, nodes - 1))
        switch = draw(st.sampled_from([None, "0000:f0:00.0", "0000:f1:00.0"]))
        address = f"0000:{number + 16:02x}:00.0"
        gpus.append(
            Gpu(
                uuid=f"GPU-{number:08d}", name="x", pci=address, minor=5 - number, nvml_index=number,
                memory_bytes=GIB, memory_used_bytes=draw(st.sampled_from([0, 0, 0, GIB // 2])),
                node=draw(st.sampled_from([node, node, None])), local_cpus=(),
                processes=draw(st.sampled_from([(), (), None])),
                pcie=PcieLink(generation=4, width=16, max_generation=4, max_width=16),
            )
        )  # fmt: skip
        if draw(st.integers(0, 5)):
            bridges = (switch,) if switch else ()
            pci.append(PciDevice(address=address, kind="gpu", root="pci0000:00", bridges=bridges, node=node))
    granted = draw(st.booleans())
    return Topology(
        arch="x86_64",
        hypervisor=draw(st.sampled_from(["none", "none", "kvm", None])),
        container=None,
        allowed_cpus=tuple(sorted(allowed)),
        allowed_nodes=tuple(range(nodes)),
        kernel=KernelFlags(release="6"),
        cores=tuple(cores),
        caches=tuple(Cache(id=i, level=3, bytes=1, cpus=tuple(sorted(c))) for i, c in caches.items()),
        nodes=tuple(
            MemoryNode(
                id=n,
                cpus=tuple(cpu for core in cores if core.id // per_node == n for cpu in core.cpus),
                bytes=draw(st.sampled_from([0, GIB])),
                distances={m: 10 if m == n else 20 for m in range(nodes)},
            )
            for n in range(nodes)
        ),
        pci=tuple(pci),
        nvml="ok",
        gpus=tuple(gpus),
        cgroups=(CgroupRight(controller="cpuset", version=2, base="/x", granted=granted),),
    )


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Topology, Wishes]:
    machine = draw(machines())
    names = [gpu.uuid for gpu in machine.gpus]
    cpus = list(machine.allowed_cpus)
    neighbours: list[dict[str, Any]] = []
    for number in range(draw(st.integers(0, 3))):
        wish: dict[str, Any] = {"name": f"n{number}", "role": draw(st.sampled_from(["decode", "prefill"]))}
        if names:
            wish["gpus"] = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
        cores = draw(st.one_of(st.none(), st.integers(1, 3), st.lists(st.sampled_from(cpus), min_size=1)))
        if cores is not None or not wish.get("gpus"):
            wish["cores"] = ",".join(map(str, cores)) if isinstance(cores, list) else cores or 1
        neighbours.append(wish)
    slots: list[dict[str, Any]] = []
    for number in range(draw(st.integers(0, 3))):
        slot: dict[str, Any] = {"name": f"s{number}", "pools": ["render"]}
        slot["count"] = draw(st.sampled_from([1, 2, "all"]))
        slot["gpus"] = draw(st.integers(0, 2))
        slot["cores"] = draw(st.integers(1, 3))
        if names and draw(st.booleans()):
            slot |= {
                "count": 1,
                "gpus": draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True)),
            }
        slots.append(slot)
    placement = {"system_cores": draw(st.integers(0, 2))}
    return machine, Wishes.model_validate({"neighbours": neighbours, "slots": slots, "placement": placement})


def check(machine: Topology, wishes: Wishes, plan: Plan) -> None:
    gpus = Counter(gpu for slot in plan.slots for gpu in slot.gpus)
    gpus.update(gpu for neighbour in plan.neighbours for gpu in neighbour.gpus)
    assert all(count == 1 for count in gpus.values()), "a GPU twice"
    cpus = Counter(cpu for slot in plan.slots for cpu in slot.cpus)
    assert all(count == 1 for count in cpus.values()), "a CPU twice"
    cores = Counter(core for slot in plan.slots for core in slot.cores)
    cores.update(core for neighbour in plan.neighbours for core in neighbour.cores)
    assert all(count == 1 for count in cores.values()), "a core twice, or a neighbour's"
    assert cpus.keys() <= set(machine.allowed_cpus)
    named = {g for wish in wishes.slots if isinstance(wish.gpus, tuple) for g in wish.gpus}
    for slot in plan.slots:
        assert slot.cpus and slot.nodes
        assert {machine.core_of[cpu].id for cpu in slot.cpus} == set(slot.cores)
        for uuid in slot.gpus:
            gpu = machine.gpu(uuid)
            idle = gpu.processes == () and (gpu.memory_used_bytes or 0) * 100 < gpu.memory_bytes
            assert idle or uuid in named, "a GPU in use was taken"
        assert slot.environment["CUDA_VISIBLE_DEVICES"] == ",".join(slot.gpus)
    assert len(plan.sharing) == len(plan.slots) * len(plan.neighbours)
    by_name = {n.name: n for n in plan.neighbours}
    for pair in plan.sharing:
        slot, neighbour = plan.slot(pair.slot), by_name[pair.neighbour]
        if pair.guarantee == "A":
            # Worked out anew from the machine, not with the code under test.
            assert machine.hypervisor == "none"
            assert machine.right("cpuset").granted
            assert neighbour.fence == "declared"
            mine, theirs = set(slot.cores), set(neighbour.cores)
            facts = machine.core_by_id
            assert all(facts[c].node is not None for c in mine | theirs)
            assert not {facts[c].llc for c in mine} & {facts[c].llc for c in theirs}
            homes = [
                {facts[c].node for c in cores} | {machine.gpu(g).node for g in own}
                for cores, own in ((mine, slot.gpus), (theirs, neighbour.gpus))
            ]
            assert not homes[0] & homes[1]
            for uuid in (*slot.gpus, *neighbour.gpus):
                assert machine.gpu(uuid).pci in machine.pci_of
            bridges = [
                {b for g in own for b in machine.pci_of[machine.gpu(g).pci].bridges}
                for own in (slot.gpus, neighbour.gpus)
            ]
            assert not bridges[0] & bridges[1]
        else:
            assert pair.raise_by
        if neighbour.fence == "none":
            assert pair.guarantee == "C"
    for wish in wishes.neighbours:
        seated = wish.name in by_name
        assert seated != any(r.wish.startswith(f"neighbours.{wish.name}.") for r in plan.refusals)


@given(scenes())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_no_device_twice_no_core_twice_neighbours_untouched_class_never_too_high(
    scene: tuple[Topology, Wishes],
) -> None:
    machine, wishes = scene
    plan = make_plan(machine, wishes)
    check(machine, wishes, plan)
    assert make_plan(machine, wishes) == plan
    assert Plan.parse(plan.dump()) == plan
    assert Topology.parse(machine.dump()) == machine
