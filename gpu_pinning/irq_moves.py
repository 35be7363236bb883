"""Moves interrupt lines as planned, and reads back what the kernel made of it."""

from __future__ import annotations

from pathlib import Path

from gpu_pinning import cpulist, files
from gpu_pinning.group import Setting, settled
from gpu_pinning.plan import InterruptMove


def move_interrupts(moves: tuple[InterruptMove, ...], root: Path = Path("/")) -> list[Setting]:
    """Write each line's CPUs. Lines that the kernel manages itself refuse (EIO), which is told, not
    hidden."""
    rows = []
    for move in moves:
        path = root / f"proc/irq/{move.irq}/smp_affinity_list"
        wanted = cpulist.show(move.to_cpus)
        try:
            files.write(path, wanted)
            error = ""
        except OSError as refused:
            error = refused.strerror or "refused"
        rows.append(settled(f"irq {move.irq}", wanted, files.read(path), error=error))
    return rows
