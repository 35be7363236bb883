"""``farm gc``, ``init-db`` and ``migrate``."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli import terminal
from api.cli.terminal import Json, print_json
from api.cli.text import size
from farm.client import FarmClient
from farm.settings import settings

app = typer.Typer()


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would be removed.")] = False,
    json: Json = False,
) -> None:
    """Remove stored bytes that no job, frame or artifact refers to."""
    with FarmClient.connect() as farm:
        report = farm.collect_garbage(dry_run=dry_run).to_json()
    if json:
        print_json(report)
        return
    for name, value in report.items():
        shown = size(value) if "bytes" in name and isinstance(value, int) else value
        terminal.out().print(f"{name.replace('_', ' ')}: {shown}")


@app.command("init-db")
def init_db() -> None:
    """Make the tables in an empty database, or bring an older one up (the same as `migrate`)."""
    migrate(None)


@app.command()
def migrate(
    revision: Annotated[
        str | None, typer.Argument(help="Schema version to go to; the newest without it.")
    ] = None,
) -> None:
    """Bring the database of FARM_DATABASE_URL (or the data folder) to a schema version."""
    from farm.db.migrate import current, upgrade

    url = settings().resolved_database_url
    before = current(url)
    upgrade(url, revision or "head")
    terminal.say(f"schema {before or 'none'} -> {current(url)}")
