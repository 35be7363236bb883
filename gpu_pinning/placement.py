"""Places neighbours, then slots, on a machine. A pure function of topology, wishes and what was seen running.

Order: neighbours; slots with named CPUs or GPUs; gangs, largest first; single GPUs; shares of GPUs; CPU
slots. A decode neighbour is latency-bound, so slots leave its PCIe switch, NUMA node and cache while the
machine has anything else, before they think of their own distances. A prefill neighbour is throughput-bound:
slots leave its GPUs and its cache, but a GPU slot stays on its own GPU's node beside it.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_pinning import cpulist, sharing, slotplan
from gpu_pinning.board import Board, busy_reason
from gpu_pinning.cores import CorePool
from gpu_pinning.gpu_choice import choose_gpus, choose_mig
from gpu_pinning.interrupts import interrupt_moves
from gpu_pinning.machine import Gpu, MigInstance, Topology
from gpu_pinning.neighbour_seats import leave_undeclared, seat_neighbour
from gpu_pinning.observed import ObservedNeighbour
from gpu_pinning.plan import GpuInUse, Plan, Refusal, Sharing, SlotPlan
from gpu_pinning.sharing import Place
from gpu_pinning.wishes import SlotWish, Wishes, default_slots

__all__ = ["busy_reason", "make_plan"]
_GPU_SLOT_CORES = 4
COPY_RATE = "STILLFRAME_COPY_BYTES_PER_S"
"""Environment variable with the pace of copies; engines keep to it."""


def make_plan(
    machine: Topology, wishes: Wishes | None = None, observed: Iterable[ObservedNeighbour] = ()
) -> Plan:
    """The plan for these wishes, or for a node without any.

    It raises nothing for a wish that cannot be met: it refuses it and says why.
    """
    wishes = wishes or Wishes()
    board = Board(
        machine=machine,
        wishes=wishes,
        observed=tuple(observed),
        cores=CorePool(machine, wishes.placement.system_cores),
        implied=not wishes.slots,
        memory={node.id: node.bytes for node in machine.nodes},
    )
    for neighbour in wishes.neighbours:
        seat_neighbour(board, neighbour)
    leave_undeclared(board)
    board.busy = {gpu.uuid: why for gpu in machine.gpus if (why := board.busy_reason_of(gpu))}
    board.places = {n.name: sharing.place_of_neighbour(machine, n) for n in board.neighbours}
    board.meant = [(n, Place(machine, n.gpus, n.cpus, n.nodes)) for n in board.neighbours]
    board.price = {core.id: board.core_price(core.id) for core in machine.cores}
    wanted = wishes.slots or default_slots()
    if board.refusals:
        # A slot could sit on the very GPU or cores of a neighbour whose place is not known.
        board.refuse(
            "slots", "none is placed while a neighbour has no place", "mend or remove that neighbour first"
        )
    else:
        for wish in sorted(wanted, key=_order):
            _slot_wish(board, wish)
        if not board.slots and not board.refusals:
            board.refuse(
                "slots", _why_none(board), "leave cores to slots: fewer system_cores, fewer for neighbours"
            )
    rank = {wish.name: number for number, wish in enumerate(wanted)}
    slots = sorted(board.slots.values(), key=lambda s: (rank[s.wish], _number(s.name)))
    order = {slot.name: number for number, slot in enumerate(slots)}
    return Plan(
        slots=tuple(slots),
        neighbours=tuple(board.neighbours),
        sharing=tuple(sorted(board.sharing, key=lambda s: order[s.slot])),
        interrupts=interrupt_moves(board, slots),
        refusals=tuple(board.refusals),
        in_use=_in_use(board),
        notes=(*board.notes, *_core_notes(board)),
        spare_cpus=board.cores.cpus(board.cores.free),
    )


def _why_none(board: Board) -> str:
    kept = {core for neighbour in board.neighbours for core in neighbour.cores}
    return (
        f"no slot has a place: of {len(board.cores.usable)} cores {len(kept)} are the neighbours', "
        f"{len(board.cores.system)} the system's and {len(board.cores.isolated - kept)} isolated"
    )


def _core_notes(board: Board) -> list[str]:
    notes = [
        f"GPU {gpu.pci} is in MIG mode and has no instance, so no slot can use it"
        for gpu in board.machine.gpus
        if gpu.mig_enabled and not gpu.mig
    ]
    if board.cores.isolated:
        cpus = cpulist.show(board.cores.cpus(board.cores.isolated))
        notes.append(
            f"CPUs {cpus} are isolated (isolcpus): slots do not use them, since the kernel spreads no "
            "threads there"
        )
    if board.cores.partial:
        notes.append(
            f"{len(board.cores.partial)} cores have a hardware thread outside this cpuset; whoever runs "
            "there shares the core"
        )
    return notes


def _slot_wish(board: Board, wish: SlotWish) -> None:
    made = 0
    while wish.count == "all" or made < wish.count:
        name = wish.name if wish.count == 1 else f"{wish.name}-{made}"
        answer = _slot(board, wish, name, may_share=wish.count != "all" or made == 0)
        if isinstance(answer, Refusal):
            # "all" is met by however many there are; for the default slots that may be none.
            if wish.count != "all" or (made == 0 and not board.implied):
                board.refusals.append(answer)
            return
        made += 1


def _slot(board: Board, wish: SlotWish, name: str, *, may_share: bool) -> SlotPlan | Refusal:
    """``may_share``: whether placement.share_cores counts for it. "All" ends where there is no free core."""
    gpus: list[Gpu] = []
    mig: MigInstance | None = None
    if wish.mig:
        found = choose_mig(board, wish, name)
        if isinstance(found, Refusal):
            return found
        gpus, mig = [found[0]], found[1]
    elif wish.gpus:
        chosen = choose_gpus(board, wish, name)
        if isinstance(chosen, Refusal):
            return chosen
        gpus = chosen
    cores = _slot_cores(board, wish, name, gpus, may_share=may_share)
    if isinstance(cores, Refusal):
        return cores
    nodes = wish.memory_nodes or board.nodes_of(cores)
    unknown = sorted(set(nodes) - set(board.machine.allowed_nodes))
    if unknown:
        return Refusal(
            wish=f"slots.{name}.memory_nodes",
            reason=f"memory node {cpulist.show(unknown)} is not this machine's to give",
            fix=(
                f"choose among {cpulist.show(board.machine.allowed_nodes)}"
                if board.machine.allowed_nodes
                else "leave memory_nodes out: this machine tells of none"
            ),
        )
    if wish.memory and wish.memory > sum(board.memory.get(node, 0) for node in nodes):
        return Refusal(
            wish=f"slots.{name}.memory",
            reason=f"wants {wish.memory >> 30} GiB and memory node {cpulist.show(nodes)} has "
            f"{sum(board.memory.get(node, 0) for node in nodes) >> 30} GiB that no slot has been given",
            fix="ask for less memory, for fewer slots, or name more memory_nodes",
        )
    if (refused := _limit_without_right(board.machine, wish, name)) is not None:
        return refused
    cpus = wish.cores if isinstance(wish.cores, tuple) else board.cores.cpus(cores)
    slot = slotplan.build(board.machine, board.wishes, wish, name, gpus, mig, cores, cpus, nodes)
    place = sharing.place_of_slot(board.machine, slot) if board.neighbours else None
    pairs = [
        sharing.judge(board.machine, slot, neighbour, place, board.places[neighbour.name])
        for neighbour in board.neighbours
    ]
    grade = sharing.lowest([pair.guarantee for pair in pairs])
    floor = wish.lowest_class or board.wishes.placement.lowest_class
    if grade and grade > floor:
        worst = max(pairs, key=lambda pair: pair.guarantee)
        return Refusal(
            wish=f"slots.{name}",
            reason=f"only class {grade} beside {worst.neighbour} is possible: {worst.reason}",
            fix=f"{worst.raise_by}; or lower lowest_class from {floor}",
        )
    if slot.deny and slot.fence.device_fence_required and slot.fence.devices == "none":
        return Refusal(
            wish=f"slots.{name}",
            reason="placement.device_fence is required and this machine gives no right for it",
            fix="run the node agent as root or with delegated cgroups (`farm node install`)",
        )
    if rate := _copy_rate(board, pairs):
        slot = slot.model_copy(update={"environment": {**slot.environment, COPY_RATE: str(rate)}})
    _take(board, slot, wish, cores, nodes)
    slot = slot.model_copy(update={"guarantee": grade})
    board.slots[name] = slot
    board.sharing += pairs
    return slot


def _limit_without_right(machine: Topology, wish: SlotWish, name: str) -> Refusal | None:
    """A limit that the kernel cannot be asked to hold here: the slot would never start."""
    for field, value, controller in (
        ("memory", wish.memory, "memory"),
        ("processes", wish.processes, "pids"),
        ("cpu_weight", wish.cpu_weight, "cpu"),
        ("disk_write", wish.disk_write, "io"),
    ):
        right = machine.right(controller)
        if value is not None and not right.granted:
            why = f" ({right.reason})" if right.reason else ""
            return Refusal(
                wish=f"slots.{name}.{field}",
                reason=f"this machine gives no right to the cgroup controller {controller}{why}, which would "
                "hold the limit",
                fix=f"run the node agent as root or with delegated cgroups (`farm node install`), or leave "
                f"{field} out",
            )
    return None


def _copy_rate(board: Board, pairs: list[Sharing]) -> int:
    """How fast the slot may copy to and from its GPU; 0: as fast as it goes."""
    decode = {neighbour.name for neighbour in board.neighbours if neighbour.role == "decode"}
    shared = any(
        pair.neighbour in decode and share.startswith("PCIe switch")
        for pair in pairs
        for share in pair.shares
    )
    return board.wishes.placement.copy_rate if shared else 0


def _take(board: Board, slot: SlotPlan, wish: SlotWish, cores: set[int], nodes: tuple[int, ...]) -> None:
    board.cores.take(cores)
    board.cores.of_slots.update(cores)
    if slot.mig:
        board.taken.add(slot.mig)
    else:
        # also of an MPS slot, which shares its GPU with other MPS slots alone
        board.taken |= set(slot.gpus)
    left = wish.memory or 0
    for node in nodes:
        part = min(left, board.memory.get(node, 0))
        board.memory[node] = board.memory.get(node, 0) - part
        left -= part


def _slot_cores(
    board: Board, wish: SlotWish, name: str, gpus: list[Gpu], *, may_share: bool
) -> set[int] | Refusal:
    where = f"slots.{name}.{wish.cores_field}"
    if isinstance(wish.cores, tuple):
        cores, bad = board.cores.of_cpus(wish.cores)
        if bad:
            return Refusal(
                wish=where,
                reason=f"CPUs {cpulist.show(bad)} are not this machine's to give",
                fix=_free_cpus(board),
            )
        if clash := cores - board.cores.free:
            return Refusal(
                wish=where,
                reason=f"CPUs {cpulist.show(board.cores.cpus(clash))} are taken by a neighbour, "
                "a slot or the system",
                fix=_free_cpus(board),
            )
        return cores
    number = wish.cores or _default_cores(board, bool(gpus))
    free = len(board.cores.for_slots())
    if board.implied and not gpus and 0 < free < number and not board.slots_of("cpu"):
        number = free  # a machine of one core still gets its CPU slot
    home = {gpu.node for gpu in gpus if gpu.node is not None}
    chosen = board.cores.choose(number, lambda core: board.price[core] + board.distance(core, home))
    sharing_allowed = board.wishes.placement.share_cores and may_share
    if chosen is None and sharing_allowed:
        used = board.cores.of_slots
        shared = sorted(board.cores.for_slots()) + sorted(used, key=lambda core: (used[core], core))
        if len(shared) >= (number if wish.cores else 1):
            board.notes.append(f"slot {name} shares cores with other slots, as placement.share_cores allows")
            return set(shared[:number])
    if chosen is None:
        others = f" beside {len(board.cores.of_slots)} of other slots" if sharing_allowed else ""
        return Refusal(
            wish=where,
            reason=f"wants {number} whole cores and {free} are free{others}",
            fix="ask for fewer cores or slots, or for fewer cores of the neighbours",
        )
    return set(chosen)


def _free_cpus(board: Board) -> str:
    free = cpulist.show(board.cores.cpus(board.cores.free))
    return f"choose among {free}" if free else "no CPU is free: take some from another slot or neighbour"


def _default_cores(board: Board, for_gpu: bool) -> int:
    if not for_gpu:
        return 2
    waiting = sum(gpu.uuid not in board.taken and gpu.uuid not in board.busy for gpu in board.machine.gpus)
    # Half of what is left belongs to the GPUs, so that a small machine keeps room for CPU slots.
    return max(1, min(_GPU_SLOT_CORES, len(board.cores.for_slots()) // (2 * max(1, waiting))))


def _in_use(board: Board) -> tuple[GpuInUse, ...]:
    found = []
    for gpu in board.machine.gpus:
        if gpu.uuid in board.busy and not any(gpu.uuid in slot.gpus for slot in board.slots.values()):
            lines = f'[[neighbours]]\nname = "gpu-{gpu.pci[-7:-2].replace(":", "-")}"\nrole = "decode"\n'
            lines += f'gpus = ["{gpu.uuid}"]\n'
            found.append(GpuInUse(uuid=gpu.uuid, pci=gpu.pci, reason=board.busy[gpu.uuid], toml=lines))
    return tuple(found)


def _order(wish: SlotWish) -> tuple[int, int]:
    if isinstance(wish.cores, tuple) or isinstance(wish.gpus, tuple):
        return 0, 0
    if wish.gpus:
        return 1, -wish.gpus
    return (2, 0) if wish.mig else (3, 0)


def _number(name: str) -> tuple[str, int]:
    head, _, tail = name.rpartition("-")
    return (head, int(tail)) if tail.isdigit() else (name, -1)
