"""Seats neighbours: their GPUs, their cores, and whether anything holds them there. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from gpu_pinning import cpulist
from gpu_pinning.board import Board
from gpu_pinning.machine import Gpu
from gpu_pinning.observed import ObservedNeighbour, fence_command
from gpu_pinning.plan import NeighbourPlan
from gpu_pinning.wishes import NeighbourWish

CORES_PER_GPU = 4
# Seating a running server off the cores that it is held to would give those to slots.
_ELSEWHERE = 1000
_ONE_EACH = "declare one neighbour per server, each with its own GPUs or MIG instances"


def seat_neighbour(board: Board, wish: NeighbourWish) -> None:
    """Give a declared server its GPUs and cores, or refuse it with the reason."""
    gpus = _instances_owners(board, wish) if wish.mig else _whole_gpus(board, wish)
    if gpus is None:
        return
    mig = wish.mig
    found = match(board.observed, wish, [gpu.uuid for gpu in gpus])
    cores = _cores(board, wish, gpus, found)
    if cores is None:
        return
    board.taken |= {gpu.uuid for gpu in gpus} | set(mig)
    board.cores.take(cores)
    cpus = wish.cores if isinstance(wish.cores, tuple) else board.cores.cpus(cores)
    fence = "declared" if isinstance(wish.cores, tuple) else "none"
    if found is not None:
        board.matched.add(found.pid)
        fence = "observed" if set(found.cpus) <= set(cpus) else "none"
    indices = sorted(board.machine.cuda_index(gpu.uuid) for gpu in gpus)
    board.neighbours.append(
        NeighbourPlan(
            name=wish.name,
            role=wish.role,
            gpus=tuple(gpu.uuid for gpu in gpus),
            pci=tuple(gpu.pci for gpu in gpus),
            mig=mig,
            cores=tuple(sorted(cores)),
            cpus=cpus,
            nodes=board.nodes_of(cores),
            fence=fence,  # type: ignore[arg-type]  # one of its three words
            environment={
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                # vLLM 41848: a UUID here crashes some versions. MIG has no other name than its UUID.
                "CUDA_VISIBLE_DEVICES": ",".join(mig or map(str, indices)),
            },
            mend=fence_command(cpulist.show(cpus), found, wish.name) if fence == "none" else None,
        )
    )


def _whole_gpus(board: Board, wish: NeighbourWish) -> list[Gpu] | None:
    where = f"neighbours.{wish.name}.gpus"
    gpus = board.named_gpus(where, wish.gpus)
    if gpus and (double := [gpu.pci for gpu in gpus if gpu.uuid in board.taken]):
        board.refuse(where, f"GPU {', '.join(double)} is another neighbour's", _ONE_EACH)
        return None
    return gpus


def _instances_owners(board: Board, wish: NeighbourWish) -> list[Gpu] | None:
    """The GPUs on which the wished MIG instances lie, each once."""
    where = f"neighbours.{wish.name}.mig"
    whole = {uuid for other in board.neighbours if not other.mig for uuid in other.gpus}
    gpus: list[Gpu] = []
    for number, uuid in enumerate(wish.mig):
        owner = next((g for g in board.machine.gpus for m in g.mig if m.uuid == uuid), None)
        if owner is None:
            board.refuse(where, f"no MIG instance {uuid} here", "see `farm topology`")
        elif uuid in wish.mig[:number]:
            board.refuse(where, f"{uuid} is named twice", "name each instance once")
        elif uuid in board.taken or owner.uuid in whole:
            board.refuse(where, f"MIG instance {uuid} is another neighbour's", _ONE_EACH)
        else:
            gpus += [owner] if owner not in gpus else []
            continue
        return None
    return gpus


def _cores(
    board: Board, wish: NeighbourWish, gpus: list[Gpu], found: ObservedNeighbour | None
) -> set[int] | None:
    where = f"neighbours.{wish.name}.{wish.cores_field}"
    if isinstance(wish.cores, tuple):
        cores, bad = board.cores.of_cpus(wish.cores)
        if bad:
            board.refuse(
                where, f"CPUs {cpulist.show(bad)} are not this machine's to give", "name CPUs that are"
            )
            return None
        clash = cores - board.cores.free - set(board.cores.system)
        if clash:
            cpus = cpulist.show(board.cores.cpus(clash))
            board.refuse(where, f"CPUs {cpus} are another neighbour's", "give each neighbour its own cores")
            return None
        return cores
    held = _held(board, found)
    if wish.cores is None and 0 < len(held) <= len(board.cores.usable) // 2:
        return held
    number = wish.cores or min(CORES_PER_GPU * max(1, len(gpus)), max(1, len(board.cores.free) // 2))
    home = {gpu.node for gpu in gpus if gpu.node is not None}
    # For a server that is not started by the farm isolated cores are good places, but it must ask for
    # them.
    chosen = board.cores.choose(
        number, lambda core: board.distance(core, home) + _ELSEWHERE * bool(held and core not in held)
    )
    if chosen is None:
        left = len(board.cores.for_slots())
        board.refuse(where, f"wants {number} cores and {left} are free", "ask for fewer")
        return None
    return set(chosen)


def leave_undeclared(board: Board) -> None:
    """Keep slots off the cores to which servers are held that run here and are not declared.

    They get no class beside such a server, since nobody watches over it: notes say so.
    """
    for seen in board.observed:
        if seen.pid in board.matched:
            continue
        who = f"a {seen.kind} server (pid {seen.pid}) runs here and is not declared in farm.toml"
        cores = _held(board, seen)
        if 0 < len(cores) <= len(board.cores.usable) // 2:
            board.cores.take(cores)
            kept = f"slots keep off CPUs {cpulist.show(board.cores.cpus(cores))}, to which it is held"
        else:
            kept = (
                "nothing holds it to cores of its own, so it may run on those of any slot (class C beside it)"
            )
        board.notes.append(f"{who}: {kept}; `farm neighbours discover` prints the lines that declare it")


def _held(board: Board, found: ObservedNeighbour | None) -> set[int]:
    """Free cores to which a server that was seen is held already; none where nothing holds it."""
    if found is None or found.whole_machine:
        return set()
    cores, _ = board.cores.of_cpus(found.cpus)
    return cores & (board.cores.free | set(board.cores.system))


def match(
    observed: Iterable[ObservedNeighbour], wish: NeighbourWish, gpus: Iterable[str]
) -> ObservedNeighbour | None:
    """The running server that a wish means: by its port, else by its GPUs."""
    own, seen = set(gpus), tuple(observed)
    port = urlsplit(wish.url).port if wish.url else None
    by_port = [o for o in seen if port is not None and o.port == port]
    by_gpu = [o for o in seen if own & set(o.gpus)]
    return next(iter([*by_port, *by_gpu]), None)
