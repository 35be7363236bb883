"""How the command line speaks: data on stdout, everything else on stderr, JSON on request.

Without a terminal no colour, no control characters, and tables as wide as their content.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from farm.errors import FarmError, InvalidInput

EXIT_FARM_ERROR = 1
EXIT_USAGE = 2
EXIT_JOB_FAILED = 3

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

STATE_STYLES = {
    "waiting": "yellow",
    "blocked": "bright_black",
    "ready": "yellow",
    "dispatched": "cyan",
    "running": "bold cyan",
    "done": "green",
    "published": "green",
    "failed": "bold red",
    "unreachable": "red",
    "cancelled": "bright_black",
    "paused": "magenta",
    "up": "green",
    "idle": "green",
    "busy": "bold cyan",
    "held": "magenta",
    "draining": "yellow",
    "dead": "bold red",
    "down": "bold red",
    "orphaned": "bold red",
}


def out() -> Console:
    """Stdout; made anew each time, so that a redirected stream is the one written to."""
    return _console(sys.stdout)


def err() -> Console:
    """Stderr, for progress, notes and errors."""
    return _console(sys.stderr)


def _console(stream: Any) -> Console:
    if stream.isatty():
        return Console(file=stream, highlight=False)
    return Console(file=stream, highlight=False, width=10_000, soft_wrap=True, no_color=True)


def interactive() -> bool:
    """Whether a person watches: stderr is a terminal that can redraw."""
    return err().is_terminal and not err().is_dumb_terminal


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def print_json_line(value: Any) -> None:
    """One JSON document on one line of stdout, at once."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def state(name: str) -> Text:
    """A state in its colour."""
    return Text(name, style=STATE_STYLES.get(name, ""))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Print rows; a column whose head begins with ``>`` stands right. ``empty`` is said if there are none."""
    console = out()
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for head in columns:
        right = head.startswith(">")
        grid.add_column(
            head.lstrip(">"), justify="right" if right else "left", no_wrap=True, overflow="ellipsis"
        )
    count = 0
    for row in rows:
        grid.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
        count += 1
    if count:
        console.print(grid)
    else:
        err().print(empty)


def say(text: str, style: str | None = None) -> None:
    """A note for the person, on stderr."""
    err().print(Text(text), style=style)


def report(error: FarmError) -> None:
    """An error on stderr: what is wrong, where, and what to do."""
    console = err()
    console.print(Text.assemble(("error: ", "bold red"), error.message))
    if isinstance(error, InvalidInput):
        for fault in error.faults:
            if fault.message and fault.message not in error.message:
                console.print(Text(f"  {fault.pointer or '/'}: {fault.message}"))
