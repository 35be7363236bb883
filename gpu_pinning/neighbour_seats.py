"""Seats neighbours: their GPUs, their cores, and whether anything holds them there. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

from gpu_pinning import cpulist
from gpu_pinning.board import Board
from gpu_pinning.machine import Gpu
from gpu_pinning.observed import ObservedNeighbour, fence_command
from gpu_pinning.plan import NeighbourPlan
from gpu_pinning.wishes import NeighbourWish

_CORES_PER_GPU = 4


def seat_neighbour(board: Board, wish: NeighbourWish) -> None:
    gpus = board.named_gpus(f"neighbours.{wish.name}.gpus", wish.gpus)
    if gpus is None:
        return
    mig = []
    for uuid in wish.mig:
        owner = next((g for g in board.machine.gpus for m in g.mig if m.uuid == uuid), None)
        if owner is None:
            board.refuse(f"neighbours.{wish.name}.mig", f"no MIG instance {uuid} here", "see `farm topology`")
            return
        mig.append(uuid)
        gpus.append(owner)
    double = [gpu.pci for gpu in gpus if gpu.uuid in board.taken and not wish.mig]
    if double:
        board.refuse(
            f"neighbours.{wish.name}.gpus",
            f"GPU {', '.join(double)} is another neighbour's",
            "declare one neighbour per server, each with its own GPUs or MIG instances",
        )
        return
    cores = _cores(board, wish, gpus)
    if cores is None:
        return
    board.taken |= {gpu.uuid for gpu in gpus} | set(mig)
    board.cores.take(cores)
    cpus = wish.cores if isinstance(wish.cores, tuple) else board.cores.cpus(cores)
    found = _match(board, wish, gpus)
    fence = "declared" if isinstance(wish.cores, tuple) else "none"
    if found is not None:
        fence = "observed" if set(found.cpus) <= set(cpus) else "none"
    indices = sorted(board.machine.cuda_index(gpu.uuid) for gpu in gpus)
    board.neighbours.append(
        NeighbourPlan(
            name=wish.name,
            role=wish.role,
            gpus=tuple(gpu.uuid for gpu in gpus),
            pci=tuple(gpu.pci for gpu in gpus),
            mig=tuple(mig),
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


def _cores(board: Board, wish: NeighbourWish, gpus: list[Gpu]) -> set[int] | None:
    where = f"neighbours.{wish.name}.cores"
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
    number = wish.cores or min(_CORES_PER_GPU * max(1, len(gpus)), max(1, len(board.cores.free) // 2))
    home = {gpu.node for gpu in gpus if gpu.node is not None}
    # For a server that is not started by the farm isolated cores are good places, but it must ask for
    # them.
    chosen = board.cores.choose(number, lambda core: board.distance(core, home))
    if chosen is None:
        left = len(board.cores.for_slots())
        board.refuse(where, f"wants {number} cores and {left} are free", "ask for fewer")
        return None
    return set(chosen)


def _match(board: Board, wish: NeighbourWish, gpus: list[Gpu]) -> ObservedNeighbour | None:
    own = {gpu.uuid for gpu in gpus}
    port = urlsplit(wish.url).port if wish.url else None
    by_port = [o for o in board.observed if port is not None and o.port == port]
    by_gpu = [o for o in board.observed if own & set(o.gpus)]
    return next(iter([*by_port, *by_gpu]), None)
