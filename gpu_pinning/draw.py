"""Plans as text: a table, a drawing of the machine, and a diff. Pure; no terminal is needed.

The drawing has one box per NUMA node: its GPUs, then one mark per physical core, cores of one last-level
cache between bars.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable

from gpu_pinning import cpulist
from gpu_pinning.diff import Change
from gpu_pinning.machine import Core, Topology
from gpu_pinning.plan import Plan, SlotPlan

_MARKS = "abcdefghijklmnopqrstuvwxyz0123456789"


def table(rows: Iterable[Iterable[str]], head: Iterable[str]) -> str:
    """Left-aligned columns under a head."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def device_text(slot: SlotPlan) -> str:
    """What a slot has of the GPUs, in a few letters."""
    if slot.mig:
        return f"{slot.mig[:12]}… on {slot.pci[0]}"
    if slot.mps_percent:
        return f"{slot.mps_percent} % of {slot.pci[0]} (MPS)"
    return ", ".join(slot.pci) or "-"


def fence_text(slot: SlotPlan) -> str:
    """How a slot is held; what is weak is said."""
    cpus = "cgroup" if slot.fence.cpus == "cgroup" else "affinity (weak: a child can widen it)"
    if not slot.deny:
        return cpus
    return f"{cpus}; GPUs {'not fenced' if slot.fence.devices == 'none' else 'by ' + slot.fence.devices}"


def render_table(plan: Plan) -> str:
    """Slots, neighbours, sharing, refusals and what else the plan has to say."""
    parts = []
    if plan.neighbours:
        rows = [
            (n.name, n.role, ", ".join(n.pci) or "-", cpulist.show(n.cpus), cpulist.show(n.nodes), n.fence)
            for n in plan.neighbours
        ]
        parts.append(table(rows, ("NEIGHBOUR", "ROLE", "GPUS", "CPUS", "MEMORY", "FENCE")))
        parts += [
            f"{n.name} is not held to its cores. To fence it: {n.mend}" for n in plan.neighbours if n.mend
        ]
    seats = [
        (
            slot.name,
            ",".join(slot.pools),
            device_text(slot),
            cpulist.show(slot.cpus),
            cpulist.show(slot.nodes),
            slot.guarantee or "-",
            fence_text(slot),
        )
        for slot in plan.slots
    ]
    parts.append(table(seats, ("SLOT", "POOLS", "DEVICE", "CPUS", "MEMORY", "CLASS", "FENCE")))
    if plan.sharing:
        groups: dict[tuple[str, str, str, str], list[str]] = {}
        for pair in plan.sharing:
            groups.setdefault((pair.neighbour, pair.guarantee, pair.reason, pair.raise_by), []).append(
                pair.slot
            )
        lines = []
        for (neighbour, grade, reason, raise_by), slots in groups.items():
            lines.append(f"class {grade} beside {neighbour}: {_names(slots)}: {reason}")
            if raise_by:
                lines.append(f"    raised by: {raise_by}")
        parts.append("\n".join(lines))
    if plan.interrupts:
        moves = [f"irq {m.irq} {m.name} {m.why}: {m.command}" for m in plan.interrupts]
        parts.append("Interrupts to move:\n  " + "\n  ".join(moves))
    for used in plan.in_use:
        toml = used.toml.rstrip().replace("\n", "\n    ")
        parts.append(f"GPU {used.pci} is left alone: {used.reason}. To declare a neighbour:\n    {toml}")
    parts += [f"Refused: {r.wish}: {r.reason}. {r.fix}." for r in plan.refusals]
    parts += [f"Note: {note}." for note in plan.notes]
    if plan.spare_cpus:
        parts.append(f"Spare CPUs: {cpulist.show(plan.spare_cpus)}")
    return "\n\n".join(parts) + "\n"


def _names(slots: list[str]) -> str:
    return ", ".join(slots) if len(slots) <= 6 else f"{', '.join(slots[:5])} and {len(slots) - 5} more"


def render_drawing(machine: Topology, plan: Plan) -> str:
    """The machine with everyone in their seats."""
    marks = dict(
        zip((slot.name for slot in plan.slots), itertools.chain(_MARKS, itertools.repeat("*")), strict=False)
    )
    seats: dict[int, str] = {core: marks[slot.name] for slot in plan.slots for core in slot.cores}
    crowd = {n.name: chr(ord("A") + i % 26) for i, n in enumerate(plan.neighbours)}
    seats |= {core: crowd[n.name] for n in plan.neighbours for core in n.cores}
    # several on a GPU that is shared
    where: dict[str, list[str]] = defaultdict(list)
    for neighbour in plan.neighbours:
        for gpu in neighbour.gpus:
            where[gpu].append(f"{crowd[neighbour.name]} {neighbour.name}")
    for slot in plan.slots:
        for gpu in slot.gpus:
            where[gpu].append(f"{marks[slot.name]} {slot.name}")
    allowed = set(machine.allowed_cpus)
    boxes = []
    for node in [*(n.id for n in machine.nodes), None]:
        cores = [core for core in machine.cores if core.node == node]
        gpus = [gpu for gpu in machine.gpus if gpu.node == node]
        if node is None and not cores and not gpus:
            continue
        title = f"NUMA node {node}" if node is not None else "NUMA node not known"
        if node is not None:
            title += f"  {machine.node_of[node].bytes / 2**30:.0f} GiB"
        lines = [title if cores or node is None else f"{title}  (no cores)"]
        for each in gpus:
            device = machine.pci_of.get(each.pci)
            via = f" via {device.bridges[0]}" if device and device.bridges else ""
            lines.append(f"  [{', '.join(where.get(each.uuid, ['.']))}] {each.pci} {each.name}{via}")
        for package in sorted({core.package for core in cores}, key=lambda p: -1 if p is None else p):
            row = [core for core in cores if core.package == package]
            lines += [
                f"  socket {'?' if package is None else package} {text}"
                for text in _rows(row, seats, allowed)
            ]
        boxes.append("\n".join(lines))
    legend = [f"{crowd[n.name]} {n.name} ({n.role})" for n in plan.neighbours]
    legend += [f"{marks[s.name]} {s.name}" for s in plan.slots[: len(_MARKS)]]
    if len(plan.slots) > len(_MARKS):
        legend.append(f"* {len(plan.slots) - len(_MARKS)} more slots")
    legend += [". free", "- not ours"]
    return "\n\n".join([*boxes, _wrap(legend)]) + "\n"


def _rows(cores: list[Core], seats: dict[int, str], allowed: set[int]) -> list[str]:
    groups = []
    for _, group in itertools.groupby(cores, key=lambda core: core.llc):
        groups.append("".join(seats.get(c.id, "." if allowed & set(c.cpus) else "-") for c in group))
    lines, line = [], "|"
    for text in groups:
        if len(line) + len(text) > 88 and line != "|":
            lines.append(line)
            line = "|"
        line += text + "|"
    return [*lines, line]


def _wrap(words: list[str]) -> str:
    lines, line = [], ""
    for word in words:
        if line and len(line) + len(word) > 96:
            lines.append(line)
            line = ""
        line += ("  " if line else "") + word
    return "\n".join([*lines, line])


def render_plan(plan: Plan, machine: Topology | None = None) -> str:
    """The table, and with a machine the drawing under it."""
    text = render_table(plan)
    return text if machine is None else text + "\n" + render_drawing(machine, plan)


def render_diff(changes: tuple[Change, ...]) -> str:
    """Changes line by line, ``+ - ~ =`` for added, removed, moved and relabelled."""
    if not changes:
        return "Nothing changes.\n"
    sign = {"added": "+", "removed": "-", "moved": "~", "relabelled": "="}
    lines = []
    for change in changes:
        drains = "  (drains first)" if change.drains else ""
        lines.append(f"{sign[change.how]} {change.what} {change.name}{drains}")
        lines += [f"    {detail}" for detail in change.details]
    return "\n".join(lines) + "\n"
