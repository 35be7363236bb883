"""``farm node``: this machine's agent, and ``farm node install``: the unit that gives it its rights."""

from __future__ import annotations

import os
import pwd
import re
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from api.cli.machine import Config, pinning_errors
from api.cli.running.services import broker_url, prepare
from api.cli.terminal import EXIT_FARM_ERROR
from farm.settings import settings

app = typer.Typer()
_UNITS = Path("/etc/systemd/system")


@app.callback(invoke_without_command=True)
def node(context: typer.Context) -> None:
    """Run this machine's node agent and its slots (shape: farm.toml of FARM_CONFIG).

    SIGHUP reads farm.toml again and applies what changed, slot by slot; SIGTERM parks the work and ends.
    """
    if context.invoked_subcommand is not None:
        return
    chosen = settings()
    prepare(chosen)
    broker_url(chosen)

    from farm.db.migrate import require_current
    from workers.agent import run_agent

    require_current(chosen.resolved_database_url)
    raise typer.Exit(run_agent(chosen))


@app.command()
def reload(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", help="The farm.toml that the agent reads; default: FARM_CONFIG, else farm.toml here."
        ),
    ] = None,
) -> None:
    """Let this machine's agent read farm.toml again: slots that move park their work and go on elsewhere.

    `farm plan --diff` shows what would change. The agent's log says what it applied, or why it did not.
    """
    from gpu_pinning import texts
    from workers.node_config import NodeConfig
    from workers.node_folders import agent_pid, node_folder

    with pinning_errors():
        # a fault in the file is told here, where its writer sees it
        node = NodeConfig(texts.the_wishes(config))
    pid = agent_pid(node_folder(settings(), node.name))
    if pid is None:
        typer.echo(f"no agent of node {node.name!r} runs here with FARM_DATA={settings().data}", err=True)
        raise typer.Exit(EXIT_FARM_ERROR)
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        typer.echo(f"the agent of node {node.name!r} (pid {pid}): {error.strerror}", err=True)
        raise typer.Exit(EXIT_FARM_ERROR) from None
    typer.echo(f"node {node.name!r} (pid {pid}) reads farm.toml again", err=True)


@app.command()
def install(
    config: Config = None,
    user: Annotated[str | None, typer.Option(help="Run the agent as this user instead of root.")] = None,
    write: Annotated[Path, typer.Option(help="Write the unit to this file, or into this folder.")] = _UNITS,
    show: Annotated[bool, typer.Option("--print", help="Print the unit and write nothing.")] = False,
) -> None:
    """Write a systemd unit that gives the node agent its rights by delegation."""
    from gpu_pinning import texts

    if user is not None:
        _refuse_unknown_user(user)
    with pinning_errors():
        text, _ = texts.unit_text(config, user=user)
    if show:
        sys.stdout.write(text)
        return
    target = write / "stillframe-node.service" if write.is_dir() else write
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"{target}: {error.strerror}; choose a place with --write, or --print", err=True)
        raise typer.Exit(EXIT_FARM_ERROR) from None
    typer.echo(
        f"{target} written. Now: systemctl daemon-reload && systemctl enable --now {target.name}", err=True
    )


def _refuse_unknown_user(user: str) -> None:
    """A unit of a user that is not there would fail at each start."""
    if user.startswith("-"):
        raise typer.BadParameter(f"--user takes the name of a user, and {user!r} is an option")
    try:
        pwd.getpwnam(user)
    except KeyError:
        raise typer.BadParameter(
            f"--user: no user is called {user!r} on this machine; make one first: useradd --system {user}"
            if re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", user)
            else f"--user: no user is called {user!r} on this machine"
        ) from None


@app.command()
def warm() -> None:
    """Build the CUDA extensions of gsplat and nerfacc for this machine's GPU, under a lock; takes minutes.

    Tasks never build them: they refuse, and name this command. Run it as the user that the slots run as.
    """
    from farm.errors import FarmError
    from jobs.nerf.extensions import build

    try:
        made = build()
    except FarmError as error:
        typer.echo(error.message, err=True)
        raise typer.Exit(EXIT_FARM_ERROR) from None
    except ImportError:
        typer.echo("torch is not installed here: pip install 'stillframe[nerf]'", err=True)
        raise typer.Exit(EXIT_FARM_ERROR) from None
    for package, what in made:
        typer.echo(f"{package}: {what}", err=what.startswith("FAILED"))
    if any(what.startswith("FAILED") for _, what in made):
        raise typer.Exit(EXIT_FARM_ERROR)
