"""``farm blender``: the Blenders of this node."""

from __future__ import annotations

from dataclasses import asdict

import typer

from api.cli import terminal
from api.cli.terminal import Json, print_json, table
from jobs.render.blender.installation import install as make
from jobs.render.blender.installation import installed, unreadable

app = typer.Typer()
blender = typer.Typer(no_args_is_help=True, help="The Blenders that this node renders with.")
app.add_typer(blender, name="blender")


@blender.command()
def install() -> None:
    """Install the Blender LTS wheel (about 1 GB) in an environment of its own, and prove that it starts."""
    made = make(say=terminal.say)
    typer.echo(f"Blender {made.version}: {made.command[0]}")


@blender.command("list")
def list_blenders(json: Json = False) -> None:
    """List the Blenders of this node: versions and programs."""
    found = installed()
    if why := unreadable():
        terminal.say(why)
    if json:
        print_json(
            [{**asdict(one), "folders": [str(folder) for folder in one.folders]} for one in found.values()]
        )
        return
    table(
        ("VERSION", "PROGRAM"),
        ((one.version, one.command[0]) for one in found.values()),
        empty="no Blender: run `farm blender install`, or name a program in FARM_BLENDER",
    )
