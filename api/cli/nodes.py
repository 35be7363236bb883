"""``farm nodes``, ``farm nodes drain`` and ``farm nodes resume``: the machines of the farm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli import terminal
from api.cli.door import connect
from api.cli.terminal import Json, print_json, state, table
from api.cli.text import ago
from farm.errors import NotFound

if TYPE_CHECKING:
    from farm.client import FarmClient

app = typer.Typer()
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name or id of a node.")]


@app.callback(invoke_without_command=True)
def nodes(context: typer.Context, json: Json = False) -> None:
    """List machines, how many of their slots are in each state, and GPUs that the farm leaves alone."""
    if context.invoked_subcommand is not None:
        return
    with connect() as farm:
        found = farm.nodes()
    if json:
        print_json([node.to_json() for node in found])
        return
    table(
        ("NODE", "NAME", "STATE", "SLOTS", "SEEN", "STARTED"),
        (
            (
                node.id,
                node.name + (" (preemptible)" if node.info.get("preemptible") else ""),
                state(node.state),
                ", ".join(f"{count} {name}" for name, count in node.slots.items() if count),
                ago(node.seen_at),
                ago(node.started_at),
            )
            for node in found
        ),
        empty="no nodes: start one with `farm node`, or everything on one machine with `farm up`",
    )
    for node in found:
        _left_alone(node.name, node.info)


@app.command()
def drain(node: NodeName) -> None:
    """Let a node take no new work; what runs there parks, and goes on elsewhere or after `resume`."""
    with connect() as farm:
        changed = farm.drain_node(_id_of(farm, node))
    terminal.say(f"{changed.name} is {changed.state}: running work parks")


@app.command()
def resume(node: NodeName) -> None:
    """Let a drained node take work again."""
    with connect() as farm:
        changed = farm.resume_node(_id_of(farm, node))
    terminal.say(f"{changed.name} is {changed.state}")


def _id_of(farm: FarmClient, wanted: str) -> str:
    for node in farm.nodes():
        if wanted in (node.id, node.name):
            return node.id
    raise NotFound(f"there is no node {wanted!r}; `farm nodes` lists them")


def _left_alone(name: str, info: dict[str, Any]) -> None:
    """GPUs that are in use, with the lines of farm.toml that would declare their user."""
    for used in info.get("gpus_in_use") or ():
        terminal.out().print(f"\n{name}: GPU {used['pci']} is left alone: {used['reason']}", markup=False)
        terminal.out().print("  to declare its user, in farm.toml:", markup=False)
        for line in str(used["toml"]).splitlines():
            terminal.out().print(f"    {line}", markup=False)
    for refusal in info.get("refusals") or ():
        text = f"\n{name}: refused: {refusal['wish']}: {refusal['reason']}. {refusal['fix']}."
        terminal.out().print(text, markup=False)
