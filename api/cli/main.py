"""The command ``farm``.

Exit codes: 0 done, 1 the farm said no or could not be reached, 2 the command line was wrong, 3 a watched
job failed or was cancelled, 130 interrupted.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from api.cli import access, fleet, jobs, node, nodes, outputs, projects, terminal, upkeep, watch
from api.cli.running import services, up
from farm.errors import FarmError

EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="farm",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Stillframe: a render farm for GPU machines that also serve language models.",
    epilog="FARM_URL and FARM_KEY choose the farm; without them, the one started last by `farm up` is used.",
)

for part in (up, services, jobs, watch, outputs, fleet, upkeep):
    for command in part.app.registered_commands:
        app.registered_commands.append(command)
app.add_typer(access.app, name="keys")
app.add_typer(node.app, name="node")
app.add_typer(nodes.app, name="nodes")
app.add_typer(projects.app, name="projects")
for optional in ("submit", "demo", "machine", "bench", "blender", "models"):
    # what belongs to gpu_pinning may not be there
    if importlib.util.find_spec(f"api.cli.{optional}") is not None:
        module = importlib.import_module(f"api.cli.{optional}")
        app.registered_commands.extend(module.app.registered_commands)
        app.registered_groups.extend(module.app.registered_groups)


def _version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(version("stillframe"))
        except PackageNotFoundError:
            typer.echo("not installed")
        raise typer.Exit


@app.callback()
def farm(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that come before the command."""


def main() -> None:
    """Run the command line; the console script ``farm``."""
    try:
        app()
    except FarmError as error:
        terminal.report(error)
        sys.exit(terminal.EXIT_FARM_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # the reader went away (`farm jobs | head`); keep the interpreter from complaining at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(terminal.EXIT_FARM_ERROR)


if __name__ == "__main__":
    main()
