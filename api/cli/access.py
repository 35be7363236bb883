"""``farm keys``: who may do what."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from api.cli import terminal
from api.cli.door import connect
from api.cli.terminal import Json, print_json, table
from api.cli.text import ago
from farm.errors import Conflict

app = typer.Typer(no_args_is_help=False, invoke_without_command=True, help="List, make and revoke keys.")


@app.callback()
def keys(context: typer.Context, json: Json = False) -> None:
    """List keys; `make` and `revoke` change them."""
    if context.invoked_subcommand is not None:
        return
    with connect() as farm:
        found = farm.keys()
    if json:
        print_json([key.to_json() for key in found])
        return
    table(
        ("KEY", "NAME", "ENDS IN", "SCOPES", "PROJECT", "MADE", "USED", "STATE"),
        (
            (
                key.id,
                key.name,
                key.hint,
                " ".join(key.scopes),
                key.project_id or "all",
                ago(key.created_at),
                ago(key.used_at),
                "revoked" if key.revoked_at else "valid",
            )
            for key in found
        ),
        empty="no keys",
    )


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", "-s", help="read, submit, operate, admin, worker; more than one is fine."),
    ] = None,
    user: Annotated[str | None, typer.Option(help="Whose key; yours without it.")] = None,
    project: Annotated[str | None, typer.Option(help="The only project that it may see.")] = None,
    json: Json = False,
) -> None:
    """Make a key. Its secret is printed once, alone on stdout."""
    with connect() as farm:
        made = farm.make_key(name, scope or ["read", "submit"], user=user, project=project)
    if json:
        print_json(made.to_json())
        return
    terminal.say(f"{made.id} {made.name} ({' '.join(made.scopes)}). Keep the key; it is not shown again:")
    typer.echo(made.secret)


@app.command()
def first(
    url: Annotated[
        str | None,
        typer.Option(help="Address of the API, kept with the key; FARM_URL or FARM_LISTEN without it."),
    ] = None,
) -> None:
    """Make a farm's first key, on a machine that reaches its database; refused where there is a key.

    Its secret is printed once, alone on stdout, and kept in your key file for the command line.
    """
    from api.cli.running.first_key import first_key
    from farm.settings import settings

    chosen = settings()
    made = first_key(chosen, url or os.environ.get("FARM_URL") or f"http://{chosen.listen}")
    if made.key is None:
        raise Conflict("this farm has a key already: who has it makes others with `farm keys make`")
    words = "The farm's first key" if made.fresh else "The first key was made before, and is in your key file"
    terminal.say(f"{words}; scopes admin. Keep it; it is not shown again:")
    typer.echo(made.key)


@app.command()
def revoke(key: Annotated[str, typer.Argument(metavar="KEY", help="Id of a key.")]) -> None:
    """End a key at once."""
    with connect() as farm:
        farm.revoke_key(key)
    terminal.say(f"{key} revoked")
