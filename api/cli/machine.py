"""``farm topology``, ``plan``, ``doctor`` and ``neighbours discover``: one machine, seen alone.

These need no farm: they look at the machine that they run on, or at a recorded one.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.terminal import EXIT_FARM_ERROR, Json
from farm.settings import settings

if TYPE_CHECKING:
    from gpu_pinning import DoctorFinding
    from gpu_pinning.claims import Claim
    from workers.node_config import NodeConfig

app = typer.Typer()
neighbours = typer.Typer(invoke_without_command=True, help="Language model servers beside the farm.")
app.add_typer(neighbours, name="neighbours")

Recorded = Annotated[
    Path | None,
    typer.Option(
        "--machine", help="A recorded machine (the JSON of `farm topology --json`) instead of this one."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="farm.toml; default: FARM_CONFIG, else farm.toml here, else none."),
]


@contextlib.contextmanager
def pinning_errors() -> Iterator[None]:
    """Turn gpu_pinning's errors into one line and an exit code."""
    from gpu_pinning.errors import ConfigError, PinningError

    try:
        yield
    except ConfigError as error:
        typer.echo(f"{error.source} cannot be used:", err=True)
        for field, value, fix in error.problems:
            typer.echo(f"  {field} = {value!r}: {fix}", err=True)
        raise typer.Exit(EXIT_FARM_ERROR) from None
    except PinningError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_FARM_ERROR) from None


def _show(make: Callable[[], tuple[str, int]]) -> None:
    with pinning_errors():
        text, code = make()
        sys.stdout.write(text)
    raise typer.Exit(code)


def _claimed(node: NodeConfig, recorded: Path | None) -> list[Claim]:
    """What agents of other nodes give out on this machine."""
    from gpu_pinning.claims import claims
    from workers.node_folders import agent_pid, node_folder

    if recorded is not None or not settings().machine_claims:
        return []
    own = agent_pid(node_folder(settings(), node.name))
    return [claim for claim in claims() if claim.pid != own]


@app.command()
def topology(machine: Recorded = None, json: Json = False) -> None:
    """Show what this machine has: GPUs, cores, memory nodes and rights."""
    from gpu_pinning import texts

    _show(lambda: texts.topology_text(machine, as_json=json))


@app.command()
def plan(
    config: Config = None,
    machine: Recorded = None,
    json: Json = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show what would change against the plan that runs.")
    ] = False,
) -> None:
    """Show who would sit where, what is shared with each neighbour, and what is refused and why.

    Exit code 1 where a wish was refused.
    """
    from gpu_pinning import texts
    from workers.node_config import NodeConfig
    from workers.placement import running_plan

    def make() -> tuple[str, int]:
        node = NodeConfig(texts.the_wishes(config))
        running = running_plan(settings(), node)
        if diff and running is None:
            typer.echo(f"No agent of node {node.name!r} runs here, so everything is new.", err=True)
        return texts.plan_text(
            config, machine, as_json=json, running=running, as_diff=diff, claimed=_claimed(node, machine)
        )

    _show(make)


@app.command()
def doctor(config: Config = None, machine: Recorded = None, json: Json = False) -> None:
    """Tell what on this machine disturbs neighbours or slots, and the command that mends it.

    Exit code 0 where nothing is worse than a note, 1 with warnings, 2 where something is bad.
    """
    from gpu_pinning import texts

    chosen = settings()

    def make() -> tuple[str, int]:
        more: list[DoctorFinding] = []
        if machine is None:
            from api.cli.reachable import reachable

            more = reachable(chosen)
        from workers.disks import local_folder
        from workers.node_config import NodeConfig

        store = local_folder(chosen.resolved_store)
        folders = [chosen.data, *([store] if store is not None else [])]
        node = NodeConfig(texts.the_wishes(config))
        return texts.doctor_text(
            config, machine, more, as_json=json, folders=folders, claimed=_claimed(node, machine)
        )

    _show(make)


@neighbours.callback()
def show_neighbours(
    context: typer.Context,
    node: Annotated[str | None, typer.Option("--node", help="Only this node (id or name).")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every second.")] = False,
    json: Json = False,
) -> None:
    """Show every neighbour's inter-token latency and what the guard makes of it."""
    if context.invoked_subcommand is None:
        from api.cli.neighbours import show

        show(node, watch=watch, json=json)


@neighbours.command()
def discover(json: Json = False) -> None:
    """Find running vLLM, SGLang and other servers, and how to declare and fence them."""
    from gpu_pinning import texts

    _show(lambda: texts.neighbours_text(as_json=json))
