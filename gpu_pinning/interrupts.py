"""Which interrupt lines should leave the cores of decode neighbours. Pure."""

from __future__ import annotations

from gpu_pinning.board import Board
from gpu_pinning.plan import InterruptMove, SlotPlan


def interrupt_moves(board: Board, slots: list[SlotPlan]) -> tuple[InterruptMove, ...]:
    """Lines that may be served by a decode neighbour's cores, other than those of its own GPUs."""
    if not board.wishes.placement.move_interrupts:
        return ()
    guarded = [n for n in board.neighbours if n.role == "decode"]
    kept = {cpu for n in guarded for cpu in n.cpus}
    own = {pci for n in guarded for pci in n.pci}
    spare = set(board.cores.cpus(set(board.cores.free) | set(board.cores.system)))
    spare = spare or {cpu for slot in slots for cpu in slot.cpus}
    moves = []
    for line in board.machine.interrupts:
        hit = kept & set(line.cpus)
        if not hit or line.device in own:
            continue
        device = board.machine.pci_of.get(line.device or "")
        home = board.machine.node_of.get(device.node) if device and device.node is not None else None
        near = set(home.cpus) if home is not None else spare
        online = set(board.machine.core_of) & board.machine.allowed_set
        target = (spare & near) or spare or (online - kept)
        if target:
            names = ", ".join(n.name for n in guarded if hit & set(n.cpus))
            moves.append(
                InterruptMove(
                    irq=line.irq,
                    name=line.name,
                    device=line.device,
                    from_cpus=line.cpus,
                    to_cpus=tuple(target),
                    why=f"may run on the cores of {names}",
                )
            )
    return tuple(moves)
