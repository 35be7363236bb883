"""A machine read from a tree on disk equals the recorded one, and the live machine can be read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpu_pinning import topology, virt
from gpu_pinning.errors import TopologyError
from gpu_pinning.machine import Topology
from gpu_pinning.placement import make_plan
from tests.unit.gpu_pinning.trees import RECORDED, RecordedNvml, put, recorded, write_tree

NAMES = sorted(path.stem for path in RECORDED.glob("*.json"))


def test_the_issue_s_machines_are_recorded() -> None:
    assert {"hgx-8gpu", "pcie-4gpu", "mig-box", "cxl-box", "permuted-minors", "virtual-machine"} < set(NAMES)
    assert {"container", "laptop"} < set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_json_round_trip_is_exact(name: str) -> None:
    machine = recorded(name)
    assert Topology.parse(machine.dump()) == machine
    assert machine.dump() == (RECORDED / f"{name}.json").read_text()


def _lists_nobody(machine: Topology) -> bool:
    return any(gpu.processes is None for gpu in machine.gpus)


@pytest.mark.parametrize("name", NAMES)
def test_reading_a_tree_gives_the_recorded_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = recorded(name)
    write_tree(machine, tmp_path)
    monkeypatch.setattr(virt, "own_pid_namespace", lambda root: _lists_nobody(machine))
    read = topology.read(
        tmp_path,
        nvml_module=RecordedNvml(machine),
        cgroups=machine.cgroups,
        device_nodes=machine.device_nodes,
        device_fence=machine.device_fence,
    )
    if machine.kernel.bandwidth_limits is None:
        # recorded before that was looked at
        kernel = read.kernel.model_copy(update={"bandwidth_limits": None})
        read = read.model_copy(update={"kernel": kernel})
    assert read.model_copy(update={"arch": machine.arch}) == machine


def test_permuted_minors_are_kept_apart_from_indices() -> None:
    machine = recorded("permuted-minors")
    first = next(gpu for gpu in machine.gpus if gpu.pci == "0000:3b:00.0")
    assert (first.nvml_index, first.minor, machine.cuda_index(first.uuid)) == (0, 3, 0)
    node = next(node for node in machine.device_nodes if node.gpu == first.uuid)
    assert node.path == "/dev/nvidia3"


def test_device_nodes_belong_to_gpus_by_minor(tmp_path: Path) -> None:
    machine = recorded("permuted-minors")
    if os.geteuid() != 0:
        pytest.skip("making device nodes needs root")
    (tmp_path / "dev").mkdir()
    others = (
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia-modeset",
        "nvidia-nvswitchctl",
        "nvidia-nvswitch0",
        "nvidia-caps/nvidia-cap1",
        "nvidia-caps-imex-channels/channel0",
    )
    try:
        for minor in (0, 1, 2, 3, 255):
            name = "nvidiactl" if minor == 255 else f"nvidia{minor}"
            os.mknod(tmp_path / "dev" / name, 0o600 | stat.S_IFCHR, os.makedev(195, minor))
        # a CPU slot may open nothing that is called /dev/nvidia*, on a box with switches between its GPUs too
        for number, name in enumerate(others):
            (tmp_path / "dev" / name).parent.mkdir(exist_ok=True)
            os.mknod(tmp_path / "dev" / name, 0o600 | stat.S_IFCHR, os.makedev(510, number))
    except PermissionError:
        pytest.skip("this container may not make device nodes")
    nodes = {node.path: node.gpu for node in topology.read_device_nodes(tmp_path, machine.gpus)}
    by_minor = {gpu.minor: gpu.uuid for gpu in machine.gpus}
    assert nodes == {
        **{f"/dev/nvidia{n}": by_minor[n] for n in range(4)},
        **dict.fromkeys(["/dev/nvidiactl", *(f"/dev/{name}" for name in others)]),
    }


def test_the_live_machine_is_read() -> None:
    machine = topology.read()
    assert set(os.sched_getaffinity(0)) <= set(machine.allowed_cpus)
    assert {cpu for core in machine.cores for cpu in core.cpus} >= set(machine.allowed_cpus)
    assert Topology.parse(machine.dump()) == machine


def test_processes_in_a_pid_namespace_of_our_own_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = recorded("workstation")
    write_tree(machine, tmp_path)
    monkeypatch.setattr(virt, "own_pid_namespace", lambda root: True)
    read = topology.read(tmp_path, RecordedNvml(machine), cgroups=(), device_nodes=(), device_fence="none")
    assert [gpu.processes for gpu in read.gpus] == [None, None]


def test_what_is_offline_is_not_there_although_it_is_allowed(tmp_path: Path) -> None:
    # Two cores of two threads. CPU 3, the second thread of CPU 1's core, is offline; so is node 2. Node 1 is
    # memory without cores (CXL). The masks of the process name all that the machine could be extended to.
    cpu = "sys/devices/system/cpu"
    put(tmp_path, f"{cpu}/online", "0-2")
    for number, threads in enumerate(("0,2", "1,3", "0,2")):
        put(tmp_path, f"{cpu}/cpu{number}/topology/core_cpus_list", threads)
        put(tmp_path, f"{cpu}/cpu{number}/topology/physical_package_id", 0)
    put(tmp_path, "sys/devices/system/node/online", "0-1")
    for node, cpus in enumerate(("0-2", "")):
        put(tmp_path, f"sys/devices/system/node/node{node}/cpulist", cpus)
        put(tmp_path, f"sys/devices/system/node/node{node}/meminfo", f"Node {node} MemTotal: 1048576 kB")
        put(tmp_path, f"sys/devices/system/node/node{node}/distance", "10 40" if node == 0 else "40 10")
    put(tmp_path, "proc/self/status", "Cpus_allowed_list:\t0-127\nMems_allowed_list:\t0-63")
    machine = topology.read(tmp_path, cgroups=(), device_nodes=(), device_fence="none")
    assert (machine.allowed_cpus, machine.allowed_nodes) == ((0, 1, 2), (0, 1))
    assert [core.cpus for core in machine.cores] == [(0, 2), (1,)]
    assert [(node.id, node.cpus, node.bytes) for node in machine.nodes] == [
        (0, (0, 1, 2), 1 << 30),
        (1, (), 1 << 30),
    ]
    # two whole cores, one of them with the one thread that it has; memory from the node of the cores alone
    (slot,) = make_plan(machine).slots
    assert (slot.cpus, slot.nodes, slot.environment["OMP_NUM_THREADS"]) == ((0, 1, 2), (0,), "2")
    assert slot.environment["OMP_WAIT_POLICY"] == "PASSIVE"


def test_a_tree_without_cpus_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="online lists no CPUs"):
        topology.read(tmp_path)


def test_a_bad_recording_names_the_field(tmp_path: Path) -> None:
    text = recorded("laptop").dump().replace('"0-1"', '"0-x"', 1)
    with pytest.raises(TopologyError, match=r"cores.0.cpus.*'0-x' is not"):
        Topology.parse(text)
    with pytest.raises(TopologyError, match="No such file"):
        Topology.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/cpuinfo": "flags : fpu sse2"}, "none"),
        ({"proc/cpuinfo": "flags : fpu hypervisor"}, "unnamed"),
        ({"proc/cpuinfo": "flags : fpu", "sys/class/dmi/id/sys_vendor": "QEMU"}, "qemu"),
        ({"proc/cpuinfo": "flags : fpu", "sys/class/dmi/id/sys_vendor": "Dell Inc."}, "none"),
        ({"proc/cpuinfo": "processor : 0\nFeatures : fp asimd"}, None),
        ({}, None),
    ],
)
def test_hypervisor(files: dict[str, str], expected: str | None, tmp_path: Path) -> None:
    for path, text in files.items():
        put(tmp_path, path, text)
    assert virt.hypervisor(tmp_path) == expected
