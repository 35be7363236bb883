"""Expected plans of the recorded machines, worked out by hand from their layout."""

from __future__ import annotations

import pytest

from gpu_pinning import cpulist
from gpu_pinning.machine import Topology
from gpu_pinning.observed import ObservedNeighbour
from gpu_pinning.placement import make_plan
from gpu_pinning.plan import Plan, Sharing
from gpu_pinning.wishes import Wishes
from tests.unit.gpu_pinning.trees import recorded


def seats(plan: Plan) -> dict[str, tuple[tuple[str, ...], str, str]]:
    """Slot name to (PCI addresses, CPUs, memory nodes)."""
    return {s.name: (s.pci, cpulist.show(s.cpus), cpulist.show(s.nodes)) for s in plan.slots}


def pair(plan: Plan, slot: str, neighbour: str) -> Sharing:
    return next(p for p in plan.sharing if (p.slot, p.neighbour) == (slot, neighbour))


DECODE_ON_HGX = """
[[neighbours]]
name = "decode-0"
gpus = ["0000:19:00.0", "0000:1a:00.0"]
cores = "0-31,256-287"
"""


def test_hgx_slots_leave_the_decode_socket() -> None:
    wishes = Wishes.parse(
        DECODE_ON_HGX
        + """
        [[slots]]
        name = "video"
        pools = ["video", "nerf", "render"]
        gpus = 1
        count = "all"
        [[slots]]
        name = "encode"
        pools = ["encode"]
        cores = 8
        count = 2
        """
    )
    plan = make_plan(recorded("hgx-8gpu"), wishes)
    # Two of eight GPUs are the neighbour's. The four of socket 1 come first; then, on socket 0, the pair
    # behind the other switch, fed from socket 1's cores all the same. Each gets four whole cores (CPU n and n
    # + 256).
    assert seats(plan) == {
        "video-0": (("0000:59:00.0",), "128-131,384-387", "1"),
        "video-1": (("0000:5a:00.0",), "132-135,388-391", "1"),
        "video-2": (("0000:79:00.0",), "136-139,392-395", "1"),
        "video-3": (("0000:7a:00.0",), "140-143,396-399", "1"),
        "video-4": (("0000:39:00.0",), "144-147,400-403", "1"),
        "video-5": (("0000:3a:00.0",), "148-151,404-407", "1"),
        "encode-0": ((), "152-159,408-415", "1"),
        "encode-1": ((), "160-167,416-423", "1"),
    }
    assert [s.guarantee for s in plan.slots] == ["A", "A", "A", "A", "B", "B", "A", "A"]
    assert pair(plan, "video-4", "decode-0").shares == ("NUMA node 0",)
    assert not plan.refusals


def test_hgx_interrupts_leave_the_decode_cores_but_not_those_of_its_own_gpus() -> None:
    machine = recorded("hgx-8gpu")
    plan = make_plan(machine, Wishes.parse(DECODE_ON_HGX))
    moved = {move.irq for move in plan.interrupts}
    # 200 and 201 are the neighbour's own GPUs; 202 and 203 may run on all of node 0; 300-303 and 304-307 are
    # queues of network cards that stand on CPUs 0 to 3. Node 1's lines never touch CPUs 0-31.
    assert moved == {202, 203, *range(300, 308)}
    kept = set(cpulist.parse("0-31,256-287"))
    assert all(move.to_cpus and not kept & set(move.to_cpus) for move in plan.interrupts)
    quiet = Wishes.parse(DECODE_ON_HGX + "[placement]\nmove_interrupts = false")
    assert make_plan(machine, quiet).interrupts == ()


def test_prefill_has_rules_of_its_own() -> None:
    """Beside prefill a GPU slot stays on its GPU's node; beside decode it leaves it."""

    def home(role: str) -> str:
        wishes = Wishes.parse(
            f"""
            [[neighbours]]
            name = "server"
            role = "{role}"
            gpus = ["0000:3b:00.0"]
            cores = "0-3,32-35"
            [[slots]]
            name = "a"
            pools = ["video"]
            gpus = ["0000:5e:00.0"]
            cores = 2
            """
        )
        return cpulist.show(make_plan(recorded("permuted-minors"), wishes).slot("a").nodes)

    assert (home("prefill"), home("decode")) == ("0", "1")


def test_pcie_box_keeps_off_the_shared_switch() -> None:
    wishes = Wishes.parse(
        """
        [[neighbours]]
        name = "decode"
        gpus = ["43:00.0"]
        cores = "0-7,32-39"
        [[slots]]
        name = "gpu"
        pools = ["video"]
        gpus = 1
        count = 3
        """
    )
    plan = make_plan(recorded("pcie-4gpu"), wishes)
    # GPUs of their own root ports first, the one beside the neighbour last; caches 0 and 1 (cores 0-7) are
    # the neighbour's, so slots begin at cache 2 (core 8).
    assert seats(plan) == {
        "gpu-0": (("0000:01:00.0",), "8-11,40-43", "0"),
        "gpu-1": (("0000:81:00.0",), "12-15,44-47", "0"),
        "gpu-2": (("0000:44:00.0",), "16-19,48-51", "0"),
    }
    first, last = pair(plan, "gpu-0", "decode"), pair(plan, "gpu-2", "decode")
    assert (first.guarantee, first.shares) == ("B", ("NUMA node 0",))
    assert "NPS" in first.raise_by
    assert last.shares == ("PCIe switch 0000:40:01.1", "NUMA node 0")


def test_mig_slots_are_class_c_beside_a_neighbour_on_that_gpu_and_must_be_asked_for() -> None:
    machine = recorded("mig-box")
    neighbour = f"""
        [[neighbours]]
        name = "small"
        mig = ["{machine.gpus[0].mig[0].uuid}"]
        cores = "0-7,64-71"
        [[slots]]
        name = "m"
        pools = ["video"]
        mig = "1g.5gb"
        """
    refused = make_plan(machine, Wishes.parse(neighbour))
    assert not refused.slots
    assert "on the GPU of a neighbour" in refused.refusals[0].reason
    plan = make_plan(machine, Wishes.parse(neighbour + 'share_with = "small"'))
    slot = plan.slot("m")
    ones = {m.uuid: m for m in machine.gpus[0].mig if m.profile == "1g.5gb"}
    assert slot.mig in ones
    assert slot.environment["CUDA_VISIBLE_DEVICES"] == slot.mig
    assert pair(plan, "m", "small").guarantee == "C"
    own = set(ones[slot.mig].caps)
    foreign = {cap for m in machine.gpus[0].mig if m.uuid != slot.mig for cap in m.caps}
    assert {node.minor for node in slot.deny if "caps" in node.path} == foreign
    assert not own & foreign
    assert "/dev/nvidia1" in {node.path for node in slot.deny}


def test_mig_instances_are_default_slots_too() -> None:
    plan = make_plan(recorded("mig-box"))
    kinds = [slot.kind for slot in plan.slots]
    assert (kinds.count("gpu"), kinds.count("mig")) == (1, 4)
    assert len({slot.mig for slot in plan.slots if slot.mig}) == 4


def test_nodes_without_cores_get_no_slot_unless_asked() -> None:
    plan = make_plan(recorded("cxl-box"))
    assert {node for slot in plan.slots for node in slot.nodes} == {0, 1}
    text = '[[slots]]\nname = "a"\npools = ["render"]\nmemory_nodes = [2]'
    assert make_plan(recorded("cxl-box"), Wishes.parse(text)).slot("a").nodes == (2,)
    text = text.replace("[2]", "[7]")
    refused = make_plan(recorded("cxl-box"), Wishes.parse(text)).refusals[0]
    assert (refused.wish, refused.fix) == ("slots.a.memory_nodes", "choose among 0-3")


def test_permuted_minors_deny_the_right_device_files() -> None:
    """jobstats 34, gvisor 9389: the minor is not the index."""
    wishes = Wishes.parse('[[slots]]\nname = "a"\npools = ["video"]\ngpus = ["0000:3b:00.0"]')
    slot = make_plan(recorded("permuted-minors"), wishes).slot("a")
    # The GPU at 3b has NVML index 0 and is /dev/nvidia3.
    assert {node.path for node in slot.deny} == {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2"}
    assert slot.environment["CUDA_VISIBLE_DEVICES"] == recorded("permuted-minors").gpus[0].uuid


def test_two_one_gpu_slots_get_two_gpus_by_uuid() -> None:
    """OpenCue 991, CGRU 427: counted is not pinned."""
    wishes = Wishes.parse('[[slots]]\nname = "a"\npools = ["video"]\ngpus = 1\ncount = 2')
    one, two = make_plan(recorded("permuted-minors"), wishes).slots
    assert one.gpus != two.gpus
    assert one.environment["CUDA_VISIBLE_DEVICES"] == one.gpus[0]
    assert one.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    # mujoco 3245: EGL ignores CUDA; each slot is denied the other's device file.
    assert two.gpus[0] in {node.gpu for node in one.deny}
    assert one.gpus[0] not in {node.gpu for node in one.deny}


def test_a_neighbour_gets_indices() -> None:
    """vllm 41848: a UUID in CUDA_VISIBLE_DEVICES crashes the server."""
    plan = make_plan(
        recorded("permuted-minors"), Wishes.parse('[[neighbours]]\nname = "n"\ngpus = ["d8:00.0", "5e:00.0"]')
    )
    assert plan.neighbours[0].environment == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "1,3",
    }


def test_virtual_machine_never_earns_a() -> None:
    wishes = Wishes.parse('[[neighbours]]\nname = "n"\ncores = "0-7"')
    plan = make_plan(recorded("virtual-machine"), wishes)
    assert {slot.guarantee for slot in plan.slots} == {"B"}
    assert "virtual machine (kvm)" in plan.sharing[0].reason
    assert "bare metal" in plan.sharing[0].raise_by


def test_container_keeps_to_its_cpuset_and_takes_no_gpu_whose_processes_it_cannot_list() -> None:
    machine = recorded("container")
    plan = make_plan(machine)
    # 12 cores are allowed, two a slot; the four half cores (12-15) come last.
    assert [cpulist.show(slot.cpus) for slot in plan.slots] == [
        "4-5,52-53",
        "6-7,54-55",
        "8-9,56-57",
        "10-11,58-59",
        "12-13",
        "14-15",
    ]
    assert {slot.nodes for slot in plan.slots} == {(0,)}
    assert [used.reason for used in plan.in_use] == ["the processes on it cannot be listed here"]
    assert all(slot.fence.cpus == "affinity" and slot.fence.devices == "none" for slot in plan.slots)
    assert "4 cores have a hardware thread outside" in plan.notes[0]


def test_affinity_alone_never_earns_a() -> None:
    wishes = Wishes.parse(
        DECODE_ON_HGX.replace("19:00.0", "d8:00.0")
        .replace('"0000:1a:00.0"', '"0000:af:00.0"')
        .replace("0-31,256-287", "16-31,48-63")
    )  # fmt: skip
    machine = recorded("permuted-minors")
    strong = make_plan(machine, wishes)
    weak = make_plan(machine.model_copy(update={"cgroups": recorded("laptop").cgroups}), wishes)
    assert strong.slots[0].guarantee == "A"
    assert weak.slots[0].guarantee == "B"
    assert "affinity alone" in weak.sharing[0].reason


def test_laptop_gets_cpu_slots_of_two_cores() -> None:
    plan = make_plan(recorded("laptop"))
    # Fourteen cores: six of two threads, eight of one. Two cores a slot; the six fast ones pair up first.
    cpus = [cpulist.show(slot.cpus) for slot in plan.slots]
    assert cpus == ["0-3", "4-7", "8-11", "12-13", "14-15", "16-17", "18-19"]
    assert {slot.pools for slot in plan.slots} == {("render", "encode", "nerf", "video")}
    assert {slot.environment["CUDA_VISIBLE_DEVICES"] for slot in plan.slots} == {""}
    assert not plan.refusals and not plan.in_use


def test_workstation_leaves_the_busy_gpu_alone_and_says_how_to_declare_it() -> None:
    machine = recorded("workstation")
    plan = make_plan(machine)
    assert [slot.pci for slot in plan.slots if slot.kind == "gpu"] == [("0000:02:00.0",)]
    used = plan.in_use[0]
    assert "VLLM::EngineCore (pid 4242)" in used.reason
    declared = make_plan(machine, Wishes.parse(used.toml))
    assert declared.neighbours[0].gpus == (machine.gpus[0].uuid,)
    assert not declared.in_use


def test_a_gpu_with_memory_in_use_and_no_process_is_left_alone() -> None:
    machine = recorded("workstation")
    free = machine.gpus[1]
    for used, taken in ((free.memory_bytes // 100 - 1, True), (free.memory_bytes // 100 + 1, False)):
        gpus = (machine.gpus[0], free.model_copy(update={"memory_used_bytes": used}))
        plan = make_plan(machine.model_copy(update={"gpus": gpus}))
        assert any(slot.gpus for slot in plan.slots) is taken


def test_a_neighbour_that_nothing_holds_makes_class_c_and_the_command_is_told() -> None:
    wishes = Wishes.parse('[[neighbours]]\nname = "n"\ngpus = ["3b:00.0"]\ncores = 4')
    plan = make_plan(recorded("permuted-minors"), wishes)
    neighbour = plan.neighbours[0]
    assert neighbour.fence == "none"
    assert cpulist.show(neighbour.cpus) == "0-3,32-35"
    assert {slot.guarantee for slot in plan.slots} == {"C"}
    assert "AllowedCPUs=0-3,32-35" in plan.sharing[0].raise_by


@pytest.mark.parametrize(("cpus", "fence", "grade"), [("0-3,32-35", "observed", "B"), ("0-63", "none", "C")])
def test_what_was_seen_counts_more_than_what_was_declared(cpus: str, fence: str, grade: str) -> None:
    machine = recorded("permuted-minors")
    seen = ObservedNeighbour(
        kind="vllm",
        pid=7,
        pids=(7, 8),
        model=None,
        role="decode",
        port=8000,
        gpus=(machine.gpus[0].uuid,),
        cpus=cpus,  # type: ignore[arg-type]
        unit="vllm.service",
        whole_machine=cpus == "0-63",
    )
    wishes = Wishes.parse('[[neighbours]]\nname = "n"\ngpus = ["3b:00.0"]\ncores = "0-3,32-35"')
    plan = make_plan(machine, wishes, [seen])
    assert plan.neighbours[0].fence == fence
    assert max(slot.guarantee or "A" for slot in plan.slots) == grade
    if fence == "none":
        expected = "systemctl set-property --runtime vllm.service AllowedCPUs=0-3,32-35"
        assert plan.neighbours[0].mend == expected


def held(machine: Topology, cpus: str, gpu: int = 0) -> ObservedNeighbour:
    """A server on one GPU of a machine whose threads may run on these CPUs."""
    return ObservedNeighbour(
        kind="vllm", pid=7, pids=(7,), model=None, role="decode", port=8000, gpus=(machine.gpus[gpu].uuid,),
        cpus=cpulist.parse(cpus), whole_machine=False,
    )  # fmt: skip


def test_a_server_that_is_held_already_is_seated_where_it_is_held() -> None:
    # 3b:00.0 is on node 0 (CPUs 0-15, 32-47), yet somebody holds its server to CPUs 20-23 and their siblings
    # 52-55. No slot may be put there, and the nearer cores 0-3 are the slots'.
    machine = recorded("permuted-minors")
    wishes = Wishes.parse('[[neighbours]]\nname = "n"\ngpus = ["3b:00.0"]')
    plan = make_plan(machine, wishes, [held(machine, "20-23,52-55")])
    (neighbour,) = plan.neighbours
    assert (cpulist.show(neighbour.cpus), neighbour.fence) == ("20-23,52-55", "observed")
    assert not {20, 21, 22, 23, 52, 53, 54, 55} & {cpu for slot in plan.slots for cpu in slot.cpus}
    assert "0" in {str(cpu) for slot in plan.slots for cpu in slot.cpus}


def test_a_server_held_to_more_than_it_was_promised_is_narrowed_within_it() -> None:
    machine = recorded("permuted-minors")
    wishes = Wishes.parse('[[neighbours]]\nname = "n"\ngpus = ["3b:00.0"]\ncores = 2')
    (neighbour,) = make_plan(machine, wishes, [held(machine, "20-23,52-55")]).neighbours
    assert (cpulist.show(neighbour.cpus), neighbour.fence) == ("20-21,52-53", "none")
    assert neighbour.mend == "taskset -acp 20-21,52-53 7"


def test_a_server_held_to_most_of_the_machine_leaves_room_for_slots() -> None:
    # 60 of 64 CPUs are more than half: it is promised the usual four cores of one GPU, among those
    machine = recorded("permuted-minors")
    wishes = Wishes.parse('[[neighbours]]\nname = "n"\ngpus = ["3b:00.0"]')
    plan = make_plan(machine, wishes, [held(machine, "2-31,34-63")])
    assert cpulist.show(plan.neighbours[0].cpus) == "2-5,34-37"
    assert plan.neighbours[0].fence == "none"
    assert plan.slots


def test_slots_keep_off_the_cores_of_a_server_that_is_not_declared() -> None:
    machine = recorded("permuted-minors")
    plan = make_plan(machine, None, [held(machine, "20-23,52-55")])
    assert not {20, 21, 22, 23, 52, 53, 54, 55} & {cpu for slot in plan.slots for cpu in slot.cpus}
    assert "slots keep off CPUs 20-23,52-55, to which it is held" in plan.notes[0]
    # one that may run anywhere cannot be kept off; that is said, with the command that helps
    loose = held(machine, "0-63").model_copy(update={"whole_machine": True})
    plan = make_plan(machine, None, [loose])
    assert "class C beside it" in plan.notes[0] and "farm neighbours discover" in plan.notes[0]
    # a declared one is a neighbour, and needs no note
    wishes = Wishes.parse('[[neighbours]]\nname = "n"\ngpus = ["3b:00.0"]')
    assert make_plan(machine, wishes, [loose]).notes == ()


def test_a_server_that_was_seen_keeps_its_gpu_also_where_it_is_not_declared() -> None:
    machine = recorded("permuted-minors")
    seen = ObservedNeighbour(
        kind="sglang", pid=7, pids=(7,), model=None, role="decode", port=None, gpus=(machine.gpus[2].uuid,),
        cpus=(0,), whole_machine=False,
    )  # fmt: skip
    plan = make_plan(machine, None, [seen])
    assert "0000:af:00.0" not in {pci for slot in plan.slots for pci in slot.pci}
    assert plan.in_use[0].reason == "used by a sglang server (pid 7)"


def test_gangs_take_linked_gpus() -> None:
    wishes = Wishes.parse('[[slots]]\nname = "gang"\npools = ["video"]\ngpus = 2\ncores = 8')
    slot = make_plan(recorded("pcie-4gpu"), wishes).slot("gang")
    assert slot.pci == ("0000:43:00.0", "0000:44:00.0")  # the pair behind one switch
    assert len(slot.environment["CUDA_VISIBLE_DEVICES"].split(",")) == 2


MPS = """
[[neighbours]]
name = "decode"
gpus = ["01:00.0"]
cores = "0-3,16-19"
[[slots]]
name = "m"
pools = ["video"]
gpus = ["01:00.0"]
mps_percent = 10
"""


def test_mps_only_when_asked_for_and_never_killed() -> None:
    refused = make_plan(recorded("workstation"), Wishes.parse(MPS))
    assert 'share_with = "decode"' in refused.refusals[0].fix
    plan = make_plan(recorded("workstation"), Wishes.parse(MPS + 'share_with = "decode"'))
    slot = plan.slot("m")
    assert (slot.kind, slot.guarantee, slot.kill_allowed) == ("mps", "C", False)
    assert slot.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "10"


@pytest.mark.parametrize(
    ("machine", "text", "wish", "reason"),
    [
        ("mig-box", 'gpus = ["07:00.0"]\nmps_percent = 10', "slots.a.gpus", "in MIG mode"),
        ("laptop", "gpus = 1", "slots.a.gpus", "NVML Shared Library Not Found"),
        ("laptop", "cores = 15", "slots.a.cores", "wants 15 whole cores and 14 are free"),
        ("container", 'cores = "0-3"', "slots.a.cores", "CPUs 0-3 are not this machine's to give"),
        ("workstation", "gpus = 2", "slots.a.gpus", "VLLM::EngineCore"),
        ("workstation", 'gpus = ["GPU-ffff"]', "slots.a.gpus", "fits no GPU"),
        ("workstation", 'memory = "200 GiB"', "slots.a.memory", "has 128 GiB"),
        ("mig-box", 'gpus = ["07:00.0"]', "slots.a.gpus", "in MIG mode"),
        ("mig-box", 'mig = "7g.40gb"', "slots.a.mig", "profiles here: 1g.5gb, 2g.10gb, 3g.20gb"),
    ],
)
def test_refusals_are_explained(machine: str, text: str, wish: str, reason: str) -> None:
    plan = make_plan(recorded(machine), Wishes.parse(f'[[slots]]\nname = "a"\npools = ["render"]\n{text}'))
    assert not plan.slots
    (refusal,) = plan.refusals
    assert refusal.wish == wish
    assert reason in refusal.reason
    assert refusal.fix


MIG_3G = "MIG-424874fb-7239-5747-8665-bcd3a3d42419"


@pytest.mark.parametrize(
    ("machine", "text", "wish", "reason"),
    [
        ("pcie-4gpu", 'gpus = ["01:00.0"]\ncores = 900', "cores", "wants 900 cores and 32 are free"),
        ("pcie-4gpu", 'gpus = ["GPU-dead"]', "gpus", "fits no GPU"),
        ("pcie-4gpu", 'gpus = ["01:00.0"]\ncpus = "64-67"', "cpus", "CPUs 64-67 are not this machine's"),
        ("mig-box", 'mig = ["MIG-dead"]', "mig", "no MIG instance MIG-dead"),
        ("mig-box", f'mig = ["{MIG_3G}", "{MIG_3G}"]', "mig", "named twice"),
    ],
)
def test_beside_a_neighbour_without_a_place_no_slot_is_placed(
    machine: str, text: str, wish: str, reason: str
) -> None:
    # its GPU is idle while the server starts: a slot would take it
    plan = make_plan(recorded(machine), Wishes.parse(f'[[neighbours]]\nname = "n"\n{text}'))
    assert not plan.slots
    first, second = plan.refusals
    assert first.wish == f"neighbours.n.{wish}"
    assert reason in first.reason
    assert (second.wish, second.fix) == ("slots", "mend or remove that neighbour first")


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (f'mig = ["{MIG_3G}"]', f'mig = ["{MIG_3G}"]', f"MIG instance {MIG_3G} is another neighbour's"),
        ('gpus = ["07:00.0"]', f'mig = ["{MIG_3G}"]', f"MIG instance {MIG_3G} is another neighbour's"),
        (f'mig = ["{MIG_3G}"]', 'gpus = ["07:00.0"]', "GPU 0000:07:00.0 is another neighbour's"),
        ('gpus = ["87:00.0"]', 'gpus = ["07:00.0", "87:00.0"]', "GPU 0000:87:00.0 is another neighbour's"),
    ],
)
def test_two_neighbours_never_have_the_same_device(first: str, second: str, reason: str) -> None:
    text = f'[[neighbours]]\nname = "n"\n{first}\n[[neighbours]]\nname = "m"\n{second}'
    plan = make_plan(recorded("mig-box"), Wishes.parse(text))
    assert [n.name for n in plan.neighbours] == ["n"]
    assert plan.refusals[0].reason == reason


def test_a_gpu_under_mps_is_no_other_slots_own() -> None:
    text = """
        [[slots]]
        name = "m"
        pools = ["render"]
        gpus = ["01:00.0"]
        mps_percent = 30
        count = 2
        [[slots]]
        name = "x"
        pools = ["render"]
        gpus = ["01:00.0"]
        [[slots]]
        name = "y"
        pools = ["render"]
        gpus = 1
        count = "all"
    """
    plan = make_plan(recorded("pcie-4gpu"), Wishes.parse(text))
    assert {s.name: s.pci for s in plan.slots} == {
        "m-0": ("0000:01:00.0",),
        "m-1": ("0000:01:00.0",),
        "y-0": ("0000:43:00.0",),
        "y-1": ("0000:44:00.0",),
        "y-2": ("0000:81:00.0",),
    }
    assert [r.reason for r in plan.refusals] == ["GPU 0000:01:00.0 is taken by a neighbour or another slot"]


def test_sharing_cores_ends_and_gives_what_was_asked_or_nothing() -> None:
    # 14 cores: "all" takes them in twos, once; a slot may sit on used cores, but not get fewer than it asked
    machine = recorded("laptop")
    shared = "[placement]\nshare_cores = true\n"
    plan = make_plan(machine, Wishes.parse(shared))
    assert [len(slot.cores) for slot in plan.slots] == [2] * 7
    one = '[[slots]]\nname = "a"\npools = ["render"]\ncores = 10\n'
    two = one.replace('"a"', '"b"')
    plan = make_plan(machine, Wishes.parse(shared + one + two))
    assert [len(slot.cores) for slot in plan.slots] == [10, 10]
    assert plan.notes == ("slot b shares cores with other slots, as placement.share_cores allows",)
    plan = make_plan(machine, Wishes.parse(shared + one + two.replace("10", "15")))
    assert [slot.name for slot in plan.slots] == ["a"]
    assert plan.refusals[0].reason == "wants 15 whole cores and 4 are free beside 10 of other slots"


def test_a_plan_without_any_slot_says_why() -> None:
    plan = make_plan(recorded("laptop"), Wishes.parse("[placement]\nsystem_cores = 99"))
    assert not plan.slots
    assert "of 14 cores 0 are the neighbours', 14 the system's" in plan.refusals[0].reason


def test_memory_is_given_once() -> None:
    text = '[[slots]]\nname = "a"\npools = ["render"]\nmemory = "50 GiB"\ncount = 3'
    plan = make_plan(recorded("workstation"), Wishes.parse(text))
    assert [slot.name for slot in plan.slots] == ["a-0", "a-1"]
    assert "has 28 GiB that no slot has been given" in plan.refusals[0].reason


def test_a_class_that_cannot_be_had_refuses_the_slot() -> None:
    wishes = Wishes.parse(
        """
        [placement]
        lowest_class = "A"
        [[neighbours]]
        name = "n"
        cores = "0-7,16-23"
        [[slots]]
        name = "a"
        pools = ["render"]
        """
    )
    refusal = make_plan(recorded("workstation"), wishes).refusals[0]
    assert "only class B beside n is possible" in refusal.reason
    assert "lower lowest_class from A" in refusal.fix


def test_system_cores_and_isolated_cores_are_left() -> None:
    machine = recorded("workstation")
    kernel = machine.kernel.model_copy(update={"isolated": (14, 15, 30, 31)})
    plan = make_plan(
        machine.model_copy(update={"kernel": kernel}), Wishes.parse("[placement]\nsystem_cores = 1")
    )
    used = {cpu for slot in plan.slots for cpu in slot.cpus}
    assert not used & {0, 16, 14, 15, 30, 31}
    assert "isolcpus" in plan.notes[0]


def test_required_device_fence_refuses_where_there_is_no_right() -> None:
    text = '[placement]\ndevice_fence = "required"'
    plan = make_plan(recorded("container"), Wishes.parse(text))
    assert not plan.slots
    text += '\n[[slots]]\nname = "a"\npools = ["render"]'
    assert "gives no right" in make_plan(recorded("container"), Wishes.parse(text)).refusals[0].reason


def test_a_plan_reads_back_from_its_json() -> None:
    plan = make_plan(recorded("mig-box"))
    assert Plan.parse(plan.dump()) == plan


def test_a_machine_of_one_core_still_gets_a_slot() -> None:
    machine = recorded("laptop")
    one = machine.model_copy(update={"allowed_cpus": (12,)})
    assert [slot.cpus for slot in make_plan(one).slots] == [(12,)]


def test_the_recorded_h200_machine_gets_the_plan_that_it_ran() -> None:
    # A virtual machine with one GPU, 16 cores in one node, and no right to cpuset: what gpu_farm ran there.
    machine = recorded("one_h200")
    wishes = '[[slots]]\nname = "gpu"\npools = ["video"]\ngpus = 1\ncount = "all"\n'
    wishes += '[[slots]]\nname = "cpu"\npools = ["render"]\ncores = 2\ncount = 6\n'
    plan = make_plan(machine, Wishes.parse(wishes))
    assert seats(plan) == {
        "gpu-0": (("0000:00:06.0",), "0-3", "0"),
        **{f"cpu-{i}": ((), f"{4 + 2 * i}-{5 + 2 * i}", "0") for i in range(6)},
    }
    assert {(s.fence.cpus, s.fence.devices, s.fence.kill) for s in plan.slots} == {
        ("affinity", "devices-bpf", "cgroup.kill")
    }
    assert not plan.slot("gpu-0").deny, "its one GPU is its own"
    assert {node.path for node in plan.slot("cpu-0").deny} == {node.path for node in machine.device_nodes}


def test_the_recorded_machine_of_two_h200s_gives_each_slot_a_gpu_of_its_own() -> None:
    # Two GPUs joined by NVLink, 32 cores in one node: what two_gpus ran there.
    machine = recorded("two_h200")
    wishes = '[[slots]]\nname = "gpu"\npools = ["video"]\ngpus = 1\ncount = "all"\n'
    wishes += '[[slots]]\nname = "cpu"\npools = ["render"]\ncores = 2\ncount = 4\n'
    plan = make_plan(machine, Wishes.parse(wishes))
    assert seats(plan) == {
        "gpu-0": (("0000:00:06.0",), "0-3", "0"),
        "gpu-1": (("0000:00:07.0",), "4-7", "0"),
        **{f"cpu-{i}": ((), f"{8 + 2 * i}-{9 + 2 * i}", "0") for i in range(4)},
    }
    own = {"gpu-0": "/dev/nvidia0", "gpu-1": "/dev/nvidia1"}
    for name, path in own.items():
        denied = {node.path for node in plan.slot(name).deny}
        assert path not in denied and (set(own.values()) - {path}) <= denied
    assert {node.path for node in plan.slot("cpu-0").deny} == {node.path for node in machine.device_nodes}


def test_a_refusal_names_the_field_that_was_written_and_offers_only_what_there_is() -> None:
    machine = recorded("laptop")
    everything = cpulist.show(machine.allowed_cpus)
    taken = f'[[slots]]\nname = "all"\npools = ["render"]\ncpus = "{everything}"\n'
    late = '[[slots]]\nname = "late"\npools = ["render"]\n'
    for written, field in (
        ('cpus = "0-1"', "cpus"),
        ('cores = "0-1"', "cores"),
        ("cores = 1", "cores"),
        ('cpus = "900"', "cpus"),
    ):
        (refusal,) = make_plan(machine, Wishes.parse(taken + late + written)).refusals
        assert refusal.wish == f"slots.late.{field}"
        assert "choose among" not in refusal.fix, "nothing is free"
    half = f'[[slots]]\nname = "x"\npools = ["render"]\ncpus = "{cpulist.show(machine.cores[0].cpus)}"\n'
    twice = half + half.replace('"x"', '"y"')
    (refusal,) = make_plan(machine, Wishes.parse(twice)).refusals
    left = sorted(cpu for core in machine.cores[1:] for cpu in core.cpus)
    assert refusal.fix == f"choose among {cpulist.show(left)}"
