"""The command ``farm``.

Exit codes: 0 done, 1 the farm said no or could not be reached, 2 the command line was wrong, 3 a watched
job failed or was cancelled, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, MutableMapping
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from api.cli import terminal
from farm.errors import FarmError

EXIT_INTERRUPTED = 130

COMMANDS: dict[str, str] = {
    "up": "running.up", "api": "running.services", "scheduler": "running.services", "node": "node",
    "submit": "submit", "jobs": "jobs", "job": "jobs", "watch": "watch", "why": "jobs", "frames": "outputs",
    "attempts": "outputs", "logs": "outputs", "download": "outputs", "cancel": "jobs", "pause": "jobs",
    "resume": "jobs", "retry": "jobs", "prioritise": "jobs", "delete": "jobs", "nodes": "nodes",
    "slots": "fleet", "pools": "fleet", "buffers": "fleet", "projects": "projects", "keys": "access",
    "models": "models", "gc": "upkeep", "init-db": "upkeep", "migrate": "upkeep", "demo": "demo",
    "topology": "machine", "plan": "machine", "doctor": "machine", "neighbours": "machine",
    "blender": "blender", "bench": "bench", "profile": "profile",
}  # fmt: skip
"""Where each command lives below ``api.cli``, in the order of the help text."""
_GROUPS = {"keys", "node", "nodes", "projects"}
"""Commands whose module is one command with others below it."""


class _OnDemand(MutableMapping[str, Any]):
    """The commands by name; a module is imported when a command of it is asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            module = importlib.import_module(f"api.cli.{COMMANDS[name]}")
            holder = typer.Typer()
            if name in _GROUPS:
                holder.add_typer(module.app, name=name)
            else:
                holder.registered_commands = module.app.registered_commands
                holder.registered_groups = module.app.registered_groups
            self._made |= typer.main.get_group(holder).commands
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Commands(typer.core.TyperGroup):
    """The top of the command line, which imports no command before it is asked for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _OnDemand()


app = typer.Typer(
    name="farm",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Stillframe: a render farm for GPU machines that also serve language models.",
    epilog="FARM_URL and FARM_KEY choose the farm; without them, the one started last by `farm up` is used.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

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
