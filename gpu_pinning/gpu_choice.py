"""Chooses the GPUs, or the share of one, that a slot gets. Pure."""

from __future__ import annotations

import itertools

from gpu_pinning.board import Board
from gpu_pinning.machine import Gpu, MigInstance
from gpu_pinning.plan import Refusal
from gpu_pinning.wishes import SlotWish

_GANG_LIMIT = 5000


def choose_gpus(board: Board, wish: SlotWish, name: str) -> list[Gpu] | Refusal:
    where = f"slots.{name}.gpus"
    if isinstance(wish.gpus, tuple):
        before = len(board.refusals)
        gpus = board.named_gpus(where, wish.gpus)
        if gpus is None:
            return (
                board.refusals.pop()
                if len(board.refusals) > before
                else Refusal(wish=where, reason="", fix="")
            )
        if wish.mps_percent:
            bad = _may_share(board, wish, gpus[0], where)
            if bad is None and gpus[0].uuid in board.busy:
                board.notes.append(f"slot {name} shares GPU {gpus[0].pci}: {board.busy[gpus[0].uuid]}")
            return bad or gpus
        for gpu in gpus:
            if gpu.uuid in board.taken:
                return Refusal(
                    wish=where,
                    reason=f"GPU {gpu.pci} is taken by a neighbour or another slot",
                    fix="name a free GPU, or ask for a share of it with mps_percent or mig and share_with",
                )
            if gpu.mig_enabled:
                return Refusal(
                    wish=where,
                    reason=f"GPU {gpu.pci} is in MIG mode",
                    fix="ask for mig = its profile or UUID",
                )
            if gpu.uuid in board.busy:
                board.notes.append(f"slot {name} was given GPU {gpu.pci} by name: {board.busy[gpu.uuid]}")
        return gpus
    free = [
        gpu
        for gpu in board.machine.gpus
        if gpu.uuid not in board.taken and gpu.uuid not in board.busy and not gpu.mig_enabled
    ]
    if len(free) < wish.gpus:
        taken = [f"{gpu.pci} ({_why_not(board, gpu)})" for gpu in board.machine.gpus if gpu not in free]
        return Refusal(
            wish=where,
            reason=f"wants {wish.gpus} and {len(free)} are free"
            + (f"; not free: {', '.join(taken)}" if taken else f"; NVML: {board.machine.nvml}"),
            fix='ask for fewer, or name GPUs that are in use but yours: gpus = ["GPU-…"]',
        )
    return list(_best_set(board, free, wish.gpus))


def _why_not(board: Board, gpu: Gpu) -> str:
    owner = next((n.name for n in board.neighbours if gpu.uuid in n.gpus), None)
    owner = owner or next((s.name for s in board.slots.values() if gpu.uuid in s.gpus), None)
    return owner or ("MIG mode" if gpu.mig_enabled else board.busy.get(gpu.uuid, "taken"))


def _best_set(board: Board, free: list[Gpu], number: int) -> tuple[Gpu, ...]:
    """The set with least sharing with neighbours, then the most links among itself, then the lowest
    address."""
    price = {gpu.uuid: board.gpu_price(gpu) for gpu in free}

    def cost(group: tuple[Gpu, ...]) -> tuple[int, int, list[str]]:
        pairs = itertools.combinations(group, 2)
        return (
            sum(price[gpu.uuid] for gpu in group),
            sum(_apart(board, a, b) for a, b in pairs),
            [gpu.pci for gpu in group],
        )

    groups = list(itertools.islice(itertools.combinations(free, number), _GANG_LIMIT + 1))
    if len(groups) <= _GANG_LIMIT:
        return min(groups, key=cost)
    group: tuple[Gpu, ...] = ()
    for _ in range(number):
        rest = [gpu for gpu in free if gpu not in group]
        so_far = group
        group = min(((*so_far, gpu) for gpu in rest), key=cost)
    return group


def _apart(board: Board, a: Gpu, b: Gpu) -> int:
    if any(link.peer == b.pci for link in a.nvlink):
        return 0
    if any(x.peer == "switch" for x in a.nvlink) and any(x.peer == "switch" for x in b.nvlink):
        return 0
    one, two = board.machine.pci_of.get(a.pci), board.machine.pci_of.get(b.pci)
    if one and two and set(one.bridges) & set(two.bridges):
        return 1
    return 2 if a.node == b.node else 3


def choose_mig(board: Board, wish: SlotWish, name: str) -> tuple[Gpu, MigInstance] | Refusal:
    where = f"slots.{name}.mig"
    options = []
    held: list[str] = []
    for gpu in board.machine.gpus:
        for instance in gpu.mig:
            if wish.mig not in ("any", instance.profile, instance.uuid):
                continue
            if instance.uuid in board.taken:
                held.append(instance.profile)
            elif any(gpu.uuid in n.gpus for n in board.neighbours):
                if _may_share(board, wish, gpu, where) is None:
                    options.append((gpu, instance))
                else:
                    held.append(f"{instance.profile} on the GPU of a neighbour")
            elif gpu.uuid in board.busy and wish.mig != instance.uuid:
                held.append(f"{instance.profile} ({board.busy[gpu.uuid]})")
            else:
                options.append((gpu, instance))
    if not options:
        there = sorted({m.profile for g in board.machine.gpus for m in g.mig})
        reason = f"no free MIG instance {wish.mig!r}; " + (
            f"not free: {', '.join(held)}" if held else f"profiles here: {', '.join(there) or 'none'}"
        )
        return Refusal(
            wish=where,
            reason=reason,
            fix="name a profile or UUID out of `farm topology`; beside a neighbour, set share_with",
        )
    return min(options, key=lambda pair: (board.gpu_price(pair[0]), -pair[1].memory_bytes, pair[1].uuid))


def _may_share(board: Board, wish: SlotWish, gpu: Gpu, where: str) -> Refusal | None:
    owners = [n for n in board.neighbours if gpu.uuid in n.gpus]
    strangers = [n.name for n in owners if n.name != wish.share_with]
    if strangers:
        return Refusal(
            wish=where,
            reason=f"GPU {gpu.pci} belongs to {', '.join(strangers)}",
            fix=f'if it really may be shared (class C): share_with = "{strangers[0]}"',
        )
    if wish.mps_percent and gpu.mig_enabled:
        return Refusal(
            wish=where,
            reason=f"GPU {gpu.pci} is in MIG mode",
            fix="ask for one of its instances with mig, or name a GPU that is not",
        )
    if wish.mps_percent and any(
        gpu.uuid in slot.gpus and slot.kind != "mps" for slot in board.slots.values()
    ):
        return Refusal(wish=where, reason=f"GPU {gpu.pci} is a slot's own", fix="name another GPU")
    return None
