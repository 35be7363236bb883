"""``farm neighbours``: every neighbour's latency and what the guard makes of it, as the nodes told last."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from api.cli import terminal
from api.cli.door import connect
from api.cli.terminal import print_json, print_json_line, table

if TYPE_CHECKING:
    from farm.client import FarmClient
    from farm.client.fleet_models import Guard, GuardedNeighbour

_AGAIN_S = 1.0
COLUMNS = (
    "NODE", "NEIGHBOUR", "STATE", ">RUNNING", ">WAITING", ">KV", ">TTFT", ">ITL P50", ">P99", ">BUDGET",
    ">OVER", "GUARD", "NOTE",
)  # fmt: skip


def show(node: str | None, *, watch: bool, json: bool) -> None:
    """Print the table, or JSON; again and again with ``watch``."""
    with connect() as farm:
        while True:
            guards = {name: farm.guard(node_id) for node_id, name in _nodes(farm, node)}
            if json:
                found = {name: guard.to_json() for name, guard in guards.items()}
                (print_json_line if watch else print_json)(found)
            else:
                if watch and terminal.out().is_terminal:
                    terminal.out().clear()
                table(COLUMNS, _rows(guards), empty="no neighbours: declare them in farm.toml, with a url")
            if not watch:
                return
            time.sleep(_AGAIN_S)


def _nodes(farm: FarmClient, wanted: str | None) -> list[tuple[str, str]]:
    if wanted is not None:
        return [(wanted, wanted)]
    return [(node.id, node.name) for node in farm.nodes() if node.state != "down"]


def _rows(guards: dict[str, Guard]) -> Iterator[Sequence[Any]]:
    for node, guard in guards.items():
        for neighbour in guard.neighbours:
            yield (
                node,
                neighbour.name if neighbour.role == "decode" else f"{neighbour.name} ({neighbour.role})",
                neighbour.condition,
                _number(neighbour.running),
                _number(neighbour.waiting),
                "" if neighbour.kv_usage is None else f"{neighbour.kv_usage:.0%}",
                _ms(neighbour.first_token_ms),
                _ms(neighbour.itl_p50_ms),
                _ms(neighbour.itl_p99_ms),
                _ms(neighbour.budget_ms),
                f"{neighbour.share_over:.1%}",
                "frozen" if neighbour.frozen else neighbour.rung.replace("_", " "),
                _note(neighbour),
            )


def _note(neighbour: GuardedNeighbour) -> str:
    if neighbour.trouble:
        return neighbour.trouble
    return neighbour.reason if neighbour.rung != "free" else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} ms"
