"""``farm slots``, ``pools`` and ``buffers``: the farm itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli import terminal
from api.cli.door import connect
from api.cli.terminal import Json, print_json, state, table
from api.cli.text import ago, percent, size

if TYPE_CHECKING:
    from farm.client.models import Answer

app = typer.Typer()
HELD = ("reserved", "filled", "draining", "orphaned")
NodeOption = Annotated[str | None, typer.Option("--node", help="Only this node (id).")]


def _json(rows: Iterable[Answer]) -> None:
    print_json([row.to_json() for row in rows])


def device_text(device: dict[str, Any]) -> str:
    """A slot's device in a few words: ``cpu, 2 threads`` or the GPU's name and the start of its UUID."""
    kind = str(device.get("kind", "?"))
    if kind == "cpu":
        threads = device.get("threads")
        return f"cpu, {threads} threads" if threads else "cpu"
    return f"{device.get('name') or kind} {str(device.get('uuid') or '')[:12]}".strip()


def fence_text(device: dict[str, Any]) -> str:
    """How a slot is held: ``cores 0-3 by cgroup, weight 20``, and its labels, such as ``weak``."""
    fence = device.get("fence")
    if not fence:
        return ""
    parts = [f"cores {device.get('cpus', '?')} by {fence.get('cpus', '?')}"]
    if (weight := fence.get("cpu_weight")) is not None:
        parts.append(f"weight {weight}")
    return ", ".join([*parts, *device.get("labels", ())])


def audit_text(device: dict[str, Any]) -> str:
    """The first thing that the last audit found wrong."""
    found = device.get("audit") or ()
    return f"audit: {found[0]['subject']}: {found[0]['found']}" if found else ""


@app.command()
def slots(node: NodeOption = None, json: Json = False) -> None:
    """List slots: device, pools in order, and what each is doing."""
    with connect() as farm:
        found = farm.slots(node=node)
    if json:
        _json(found)
        return
    table(
        ("SLOT", "NODE", "NAME", "STATE", "DEVICE", "CLASS", "FENCE", "POOLS", "TASK", ">RESTARTS", "NOTE"),
        (
            (
                slot.id,
                slot.node,
                slot.name,
                state(slot.state),
                device_text(slot.device),
                slot.device.get("class") or "-",
                fence_text(slot.device),
                " ".join(slot.pools),
                slot.task_ids[0] if slot.task_ids else "",
                slot.restarts or "",
                slot.hold_reason or audit_text(slot.device),
            )
            for slot in found
        ),
        empty="no slots: `farm node` on a machine brings some",
    )


@app.command()
def pools(json: Json = False) -> None:
    """List pools: slots, waiting and busy tasks, caps."""
    with connect() as farm:
        found = farm.pools()
    if json:
        _json(found)
        return
    table(
        ("POOL", ">SLOTS", ">BUSY", ">READY", ">CAP", "STATE"),
        (
            (
                pool.name,
                pool.slots,
                pool.busy,
                pool.ready,
                "none" if pool.max_slots is None else pool.max_slots,
                state("paused") if pool.paused else "open",
            )
            for pool in found
        ),
        empty="no pools yet: they come with the first node or job",
    )


@app.command()
def buffers(
    node: NodeOption = None,
    medium: Annotated[str | None, typer.Option(help="vram, pinned, shm, spool or store.")] = None,
    state_is: Annotated[
        str | None, typer.Option("--state", "-s", help="reserved, filled, draining, released or orphaned.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1)] = 50,
    json: Json = False,
) -> None:
    """List buffers that hold something, and how full each byte budget is."""
    with connect() as farm:
        budgets = [
            budget
            for budget in farm.budgets()
            if node in (None, budget.node_id) and medium in (None, budget.medium)
        ]
        states = [state_is] if state_is else list(HELD)
        found = list(farm.buffers(limit=limit, node=node, medium=medium, state=states))
    if json:
        print_json(
            {"budgets": [row.to_json() for row in budgets], "buffers": [row.to_json() for row in found]}
        )
        return
    table(
        ("NODE", "MEDIUM", ">RESERVED", ">BUDGET", ">USED"),
        (
            (
                budget.node_id,
                budget.medium,
                size(budget.reserved_bytes),
                size(budget.budget_bytes),
                percent(budget.reserved_bytes / budget.budget_bytes) if budget.budget_bytes else "",
            )
            for budget in budgets
        ),
        empty="no budgets yet: a node sets them when it starts",
    )
    terminal.out().print()
    rows: Iterable[Sequence[Any]] = (
        (
            buffer.id,
            buffer.medium,
            buffer.purpose,
            size(buffer.bytes),
            state(buffer.state),
            buffer.task_id or "",
            ago(buffer.created_at),
            buffer.note or "",
        )
        for buffer in found
    )
    table(
        ("BUFFER", "MEDIUM", "PURPOSE", ">BYTES", "STATE", "TASK", "SINCE", "NOTE"), rows, empty="no buffers"
    )
