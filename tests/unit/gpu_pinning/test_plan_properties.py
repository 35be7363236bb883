"""What holds for every machine and every wish: random machines, neighbours and slots."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gpu_pinning.machine import (
    Cache,
    CgroupRight,
    Core,
    Gpu,
    Interrupt,
    KernelFlags,
    MemoryNode,
    MigInstance,
    PciDevice,
    PcieLink,
    Topology,
)
from gpu_pinning.observed import ObservedNeighbour
from gpu_pinning.placement import make_plan
from gpu_pinning.plan import Plan
from gpu_pinning.wishes import Wishes

GIB = 1 << 30


@st.composite
def machines(draw: st.DrawFn, spans: bool | None = None) -> Topology:
    """``spans``: whether caches span NUMA nodes; None: either."""
    nodes = draw(st.integers(1, 3))
    per_node = draw(st.integers(1, 8))
    per_llc = draw(st.sampled_from([1, 2, 4, 8]))
    threads = draw(st.integers(1, 2))
    known = draw(st.booleans())
    spans = draw(st.booleans()) if spans is None else spans
    total = nodes * per_node
    cores, caches = [], {}
    for core in range(total):
        cpus = tuple(core + total * t for t in range(threads))
        node = core // per_node
        # a firmware's NUMA nodes may cut through a cache (cluster on die, SNC): its number spans them
        llc = core // per_llc if spans else node * 100 + core % per_node // per_llc
        caches.setdefault(llc, []).extend(cpus)
        cores.append(Core(id=core, package=node, die=0, node=node if known else None, llc=llc, cpus=cpus))
    all_cpus = [cpu for core in cores for cpu in core.cpus]
    allowed = draw(st.one_of(st.just(all_cpus), st.lists(st.sampled_from(all_cpus), min_size=1, unique=True)))
    gpus, pci = [], []
    for number in range(draw(st.integers(0, 6))):
        node = draw(st.integers(0, nodes - 1))
        switch = draw(st.sampled_from([None, "0000:f0:00.0", "0000:f1:00.0"]))
        address = f"0000:{number + 16:02x}:00.0"
        mig_enabled = not draw(st.integers(0, 3))
        profiles = draw(st.lists(st.sampled_from(["1g", "3g"]), max_size=3)) if mig_enabled else []
        gpus.append(
            Gpu(
                mig_enabled=mig_enabled,
                mig=tuple(
                    MigInstance(
                        uuid=f"MIG-{number}-{i}", profile=profile, gpu_instance=i, compute_instance=0,
                        memory_bytes=GIB // 4, caps=(number * 10 + i,),
                    )
                    for i, profile in enumerate(profiles)
                ),
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
    # A hot-pluggable CPU that is offline is allowed, yet in no core; a CXL card is a node without CPUs.
    offline = draw(st.sampled_from([(), (900, 901)]))
    far = draw(st.booleans())
    lines = tuple(
        Interrupt(
            irq=40 + number,
            name="q",
            device=device.address,
            cpus=tuple(draw(st.lists(st.sampled_from(all_cpus), min_size=1, unique=True))),
        )
        for number, device in enumerate(pci)
    )
    return Topology(
        arch="x86_64",
        hypervisor=draw(st.sampled_from(["none", "none", "kvm", None])),
        container=None,
        allowed_cpus=(*sorted(allowed), *offline),
        allowed_nodes=tuple(range(nodes + far)),
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
        )
        + (MemoryNode(id=nodes, cpus=(), bytes=GIB, distances=dict.fromkeys(range(nodes), 30)),) * far,
        interrupts=lines,
        pci=tuple(pci),
        nvml="ok",
        gpus=tuple(gpus),
        cgroups=(CgroupRight(controller="cpuset", version=2, base="/x", granted=granted),),
    )


Scene = tuple[Topology, Wishes, tuple[ObservedNeighbour, ...]]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    machine = draw(machines())
    names = [gpu.uuid for gpu in machine.gpus]
    instances = [instance.uuid for gpu in machine.gpus for instance in gpu.mig]
    cpus = [cpu for cpu in machine.allowed_cpus if cpu in machine.core_of]
    some_cpus = st.lists(st.sampled_from(cpus), min_size=1, unique=True)
    neighbours: list[dict[str, Any]] = []
    for number in range(draw(st.integers(0, 3))):
        wish: dict[str, Any] = {"name": f"n{number}", "role": draw(st.sampled_from(["decode", "prefill"]))}
        if instances and draw(st.booleans()):
            wish["mig"] = draw(st.lists(st.sampled_from(instances), max_size=2))
        elif names:
            wish["gpus"] = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
        cores = draw(st.one_of(st.none(), st.integers(1, 3), some_cpus))
        if cores is not None or not (wish.get("gpus") or wish.get("mig")):
            wish["cores"] = ",".join(map(str, cores)) if isinstance(cores, list) else cores or 1
        neighbours.append(wish)
    slots: list[dict[str, Any]] = []
    for number in range(draw(st.integers(0, 4))):
        slot: dict[str, Any] = {"name": f"s{number}", "pools": ["render"]}
        slot["count"] = draw(st.sampled_from([1, 2, "all"]))
        slot["cores"] = draw(st.sampled_from([None, 1, 2, 3]))
        what = draw(st.sampled_from(["cpu", "number", "named", "mig", "mps"]))
        if what == "number":
            slot["gpus"] = draw(st.integers(1, 2))
        elif what == "named" and names:
            slot["count"] = 1
            slot["gpus"] = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        elif what == "mps" and names:
            slot |= {
                "count": draw(st.integers(1, 2)),
                "mps_percent": 10,
                "gpus": [draw(st.sampled_from(names))],
            }
        elif what == "mig":
            slot["mig"] = draw(st.sampled_from(["any", "1g", "3g", *instances]))
        if neighbours and what in ("mig", "mps") and (slot.get("mig") or slot.get("mps_percent")):
            slot["share_with"] = draw(st.sampled_from([None, *(n["name"] for n in neighbours)]))
        slots.append(slot)
    placement = {"system_cores": draw(st.integers(0, 2)), "share_cores": draw(st.booleans())}
    observed = []
    for number in range(draw(st.integers(0, 2))):
        own = draw(st.lists(st.sampled_from(names), max_size=2, unique=True)) if names else []
        seen = sorted(draw(some_cpus))
        observed.append(
            ObservedNeighbour(
                kind="vllm", pid=number + 2, pids=(number + 2,), model=None, role="both", port=8000 + number,
                gpus=tuple(own), cpus=tuple(seen), whole_machine=set(seen) == set(machine.core_of),
            )
        )  # fmt: skip
    wishes = Wishes.model_validate({"neighbours": neighbours, "slots": slots, "placement": placement})
    return machine, wishes, tuple(observed)


def check(machine: Topology, wishes: Wishes, observed: tuple[ObservedNeighbour, ...], plan: Plan) -> None:
    exclusive = Counter(gpu for slot in plan.slots if slot.kind == "gpu" for gpu in slot.gpus)
    exclusive.update(gpu for neighbour in plan.neighbours if not neighbour.mig for gpu in neighbour.gpus)
    assert all(count == 1 for count in exclusive.values()), "a GPU twice"
    instances = Counter(slot.mig for slot in plan.slots if slot.mig)
    instances.update(uuid for neighbour in plan.neighbours for uuid in neighbour.mig)
    assert all(count == 1 for count in instances.values()), "a MIG instance twice"
    owner_of = {uuid: n.name for n in plan.neighbours for uuid in n.gpus}
    wish_of = {wish.name: wish for wish in wishes.slots}
    for slot in plan.slots:
        if slot.kind in ("mig", "mps"):
            (uuid,) = slot.gpus
            assert machine.gpu(uuid).mig_enabled == (slot.kind == "mig")
            mates = [other for other in plan.slots if uuid in other.gpus]
            assert {other.kind for other in mates} == {slot.kind}, "a share of a slot's own GPU"
            if uuid in owner_of:
                assert wish_of[slot.wish].share_with in {n.name for n in plan.neighbours if uuid in n.gpus}
                assert slot.guarantee == "C"
        else:
            assert not any(machine.gpu(uuid).mig_enabled for uuid in slot.gpus)
    kept = Counter(core for neighbour in plan.neighbours for core in neighbour.cores)
    assert all(count == 1 for count in kept.values()), "a core of two neighbours"
    cores = Counter(core for slot in plan.slots for core in slot.cores)
    assert not cores.keys() & kept.keys(), "a core of a neighbour"
    if not wishes.placement.share_cores:
        assert all(count == 1 for count in cores.values()), "a core twice"
    assert {cpu for slot in plan.slots for cpu in slot.cpus} <= set(machine.allowed_cpus) & set(
        machine.core_of
    )
    named = {g for wish in wishes.slots if isinstance(wish.gpus, tuple) for g in wish.gpus}
    named |= {g.uuid for g in machine.gpus for m in g.mig for wish in wishes.slots if wish.mig == m.uuid}
    for slot in plan.slots:
        assert slot.cpus and slot.nodes
        assert {machine.core_of[cpu].id for cpu in slot.cpus} == set(slot.cores)
        asked = wish_of[slot.wish].cores if slot.wish in wish_of else None
        assert asked is None or len(slot.cores) == asked, "more or fewer cores than were asked for"
        for uuid in slot.gpus:
            gpu = machine.gpu(uuid)
            idle = gpu.processes == () and (gpu.memory_used_bytes or 0) * 100 < gpu.memory_bytes
            idle = idle and not any(uuid in seen.gpus for seen in observed)
            assert idle or uuid in named or uuid in owner_of, "a GPU in use was taken"
        assert slot.environment["CUDA_VISIBLE_DEVICES"] == (slot.mig or ",".join(slot.gpus))
    assert plan.slots or plan.refusals, "no slot, and nothing says why"
    for move in plan.interrupts:
        assert set(move.to_cpus) <= set(machine.core_of), "an interrupt for an offline CPU"
        assert not set(move.to_cpus) & {c for n in plan.neighbours if n.role == "decode" for c in n.cpus}
    assert len(plan.sharing) == len(plan.slots) * len(plan.neighbours)
    by_name = {n.name: n for n in plan.neighbours}
    for pair in plan.sharing:
        slot, neighbour = plan.slot(pair.slot), by_name[pair.neighbour]
        if pair.guarantee == "A":
            # Worked out anew from the machine, not with the code under test.
            assert machine.hypervisor == "none"
            assert machine.right("cpuset").granted
            assert neighbour.fence != "none"
            if neighbour.fence == "observed":
                assert any(set(seen.cpus) <= set(neighbour.cpus) for seen in observed)
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
        elif not set(slot.cores) & set(neighbour.cores):
            caches = [{machine.core_by_id[c].llc for c in cores} for cores in (slot.cores, neighbour.cores)]
            assert ("last-level cache" in pair.shares) == bool(caches[0] & caches[1])
    for wish in wishes.neighbours:
        seated = wish.name in by_name
        assert seated != any(r.wish.startswith(f"neighbours.{wish.name}.") for r in plan.refusals)
        assert seated or not plan.slots, "slots beside a neighbour whose place is not known"


@given(scenes())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_no_device_twice_no_core_twice_neighbours_untouched_class_never_too_high(
    scene: Scene,
) -> None:
    machine, wishes, observed = scene
    plan = make_plan(machine, wishes, observed)
    check(machine, wishes, observed, plan)
    assert make_plan(machine, wishes, observed) == plan
    assert Plan.parse(plan.dump()) == plan
    assert Topology.parse(machine.dump()) == machine


@given(machines(spans=True), st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_cache_in_common_is_told_whatever_nodes_its_cores_are_in(
    machine: Topology, data: st.DataObject
) -> None:
    allowed = set(machine.allowed_cpus)
    whole = [core for core in machine.cores if allowed.issuperset(core.cpus)]
    assume(len(whole) > 1)
    mine, theirs = data.draw(st.permutations(whole))[:2]
    cpus, own = (",".join(map(str, core.cpus)) for core in (theirs, mine))
    text = f'[[neighbours]]\nname = "n"\ncpus = "{cpus}"\n'
    text += f'[[slots]]\nname = "s"\npools = ["render"]\ncpus = "{own}"\n'
    plan = make_plan(machine, Wishes.parse(text))
    (pair,) = plan.sharing
    assert ("last-level cache" in pair.shares) == (mine.llc == theirs.llc)
    if mine.llc == theirs.llc:
        assert pair.guarantee != "A"
