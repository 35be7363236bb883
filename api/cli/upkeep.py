"""``farm gc``, ``init-db`` and ``migrate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from api.cli import terminal
from api.cli.door import connect
from api.cli.terminal import Json, print_json
from api.cli.text import size
from farm.settings import settings

app = typer.Typer()


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would be removed.")] = False,
    json: Json = False,
) -> None:
    """Remove stored bytes that no job, frame or artifact refers to, once they are a day old."""
    with connect() as farm:
        report = farm.collect_garbage(dry_run=dry_run).to_json()
    if json:
        print_json(report)
        return
    terminal.out().print(gc_text(report))


def gc_text(report: Mapping[str, Any]) -> str:
    """What a collection did, in words."""
    parts = [
        f"{_number(report['contents'], 'content')} that nothing refers to ({size(report['bytes'])})",
        f"{_number(report['strays'], 'file')} that the database does not know",
    ]
    if report["dry_run"]:
        return f"would remove {', '.join(parts)}; run it without --dry-run to do so"
    return f"removed {', '.join(parts)}, {_number(report['temporary'], 'unfinished upload')}"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


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
