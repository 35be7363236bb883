"""Fills in one slot of the plan: environment, fence, limits and forbidden device nodes. Pure."""

from __future__ import annotations

from typing import Literal

from gpu_pinning.machine import DeviceNode, Gpu, MigInstance, Topology
from gpu_pinning.plan import FencePlan, Limits, SlotKind, SlotPlan
from gpu_pinning.wish_values import THREAD_COUNTS
from gpu_pinning.wishes import SlotWish, Wishes

_HOST_WORK_WEIGHT = 20
MPS_DIRECTORY = "/tmp/nvidia-mps"


def build(
    machine: Topology,
    wishes: Wishes,
    wish: SlotWish,
    name: str,
    gpus: list[Gpu],
    mig: MigInstance | None,
    cores: set[int],
    cpus: tuple[int, ...],
    nodes: tuple[int, ...],
) -> SlotPlan:
    """The slot that sits here."""
    kind: SlotKind = "mig" if mig else "mps" if wish.mps_percent else "gpu" if gpus else "cpu"
    deny = forbidden(machine, gpus, mig)
    return SlotPlan(
        name=name,
        wish=wish.name,
        kind=kind,
        pools=wish.pools,
        gpus=tuple(gpu.uuid for gpu in gpus),
        pci=tuple(gpu.pci for gpu in gpus),
        mig=mig.uuid if mig else None,
        mps_percent=wish.mps_percent,
        cores=tuple(sorted(cores)),
        cpus=cpus,
        nodes=nodes,
        environment={
            **environment(name, gpus, mig, wish.mps_percent, wish.threads or len(cores)),
            **wish.environment,
        },
        fence=fence_plan(machine, required=wishes.placement.device_fence == "required"),
        limits=Limits(
            memory_bytes=wish.memory,
            processes=wish.processes,
            disk_write_bytes=wish.disk_write,
            disk_path=wishes.paths.work if wish.disk_write else None,
            cpu_weight=_cpu_weight(machine, wish, bool(gpus)),
            cpu_weight_required=wish.cpu_weight is not None,
        ),
        nice=wish.nice if wish.nice is not None else (0 if gpus else 10),
        ionice=wish.ionice or ("none" if gpus else "best-effort"),
        deny=deny,
    )


def _cpu_weight(machine: Topology, wish: SlotWish, on_gpu: bool) -> int | None:
    """A weight that was asked for has to hold; the usual one is set where it can be."""
    if wish.cpu_weight is not None:
        return wish.cpu_weight
    return (100 if on_gpu else _HOST_WORK_WEIGHT) if machine.right("cpu").granted else None


def environment(
    name: str, gpus: list[Gpu], mig: MigInstance | None, mps_percent: int | None, threads: int
) -> dict[str, str]:
    """What is set before exec. CUDA_VISIBLE_DEVICES is empty, not absent, for a CPU slot."""
    devices = [mig.uuid] if mig else [gpu.uuid for gpu in gpus]
    env = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(devices),
        # For container runtimes that a task may start; "void" gives no driver at all.
        "NVIDIA_VISIBLE_DEVICES": ",".join(devices) or "void",
        "STILLFRAME_SLOT": name,
        "STILLFRAME_SLOT_PCI": ",".join(gpu.pci for gpu in gpus),
        **dict.fromkeys(THREAD_COUNTS, str(max(1, threads))),
        # Threads that wait for one another sleep instead of spinning: on cores that others use too, two
        # threads of a training took 4.5 times the CPU time and up to 9 times as long with spinning.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    if not gpus:
        env["LIBGL_ALWAYS_SOFTWARE"] = "1"
    if mps_percent:
        env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(mps_percent)
        env["CUDA_MPS_PIPE_DIRECTORY"] = MPS_DIRECTORY
    return env


def forbidden(machine: Topology, gpus: list[Gpu], mig: MigInstance | None) -> tuple[DeviceNode, ...]:
    """Device nodes that must not open: every GPU's for a CPU slot, those of other GPUs and instances else."""
    if not gpus:
        return machine.device_nodes
    own = {gpu.uuid for gpu in gpus}
    caps = {cap for gpu in machine.gpus for instance in gpu.mig for cap in instance.caps}
    mine = set(mig.caps) if mig else set()
    denied = []
    for node in machine.device_nodes:
        if "/nvidia-caps/" in node.path:
            if node.minor in caps - mine:
                denied.append(node)
        elif node.gpu is not None and node.gpu not in own:
            denied.append(node)
    return tuple(denied)


def fence_plan(machine: Topology, required: bool) -> FencePlan:
    """With what this machine can hold a slot."""
    memory: Literal["cgroup", "policy"] = "cgroup" if machine.right("cpuset").granted else "policy"
    return FencePlan(
        cpus="cgroup" if machine.right("cpuset").granted else "affinity",
        memory=memory,
        devices=machine.device_fence,
        device_fence_required=required,
        kill="cgroup.kill" if machine.right("kill").granted else "signals",
        freeze="cgroup" if machine.right("freeze").granted else "SIGSTOP",
    )
