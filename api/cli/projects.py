"""``farm projects``: who pays, what share and caps each has, and which reserve slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli import terminal
from api.cli.door import connect
from api.cli.terminal import Json, print_json, table
from api.cli.text import duration
from farm.errors import NotFound

if TYPE_CHECKING:
    from farm.client import FarmClient
    from farm.client.fleet_models import Project

app = typer.Typer()
NO_LIMIT = "none"
Share = Annotated[
    float | None, typer.Option("--share", help="Weight against other projects that wait for the same pool.")
]
Cap = Annotated[
    str | None, typer.Option("--max-slots", metavar="N|none", help="Most slots that it may use at a time.")
]
Quota = Annotated[
    str | None, typer.Option("--quota", metavar="SECONDS|none", help="Slot-seconds that it may use in all.")
]
Reserve = Annotated[
    bool | None,
    typer.Option(
        "--reserve/--no-reserve",
        help="Keep a part of the slots (FARM_RESERVE_FLOOR, 0.2) on nodes that stay for projects like this.",
    ),
]


@app.callback(invoke_without_command=True)
def projects(context: typer.Context, json: Json = False) -> None:
    """List projects: share, caps and what they have used; `make` and `change` them."""
    if context.invoked_subcommand is not None:
        return
    with connect() as farm:
        found = farm.projects()
    if json:
        print_json([project.to_json() for project in found])
        return
    table(
        ("PROJECT", "NAME", ">SHARE", ">CAP", ">QUOTA", "RESERVES", ">SLOT TIME", ">GPU TIME"),
        (
            (
                project.id,
                project.name,
                f"{project.share:g}",
                "none" if project.max_slots is None else project.max_slots,
                "none" if project.quota_slot_s is None else duration(project.quota_slot_s),
                "slots" if project.reserved else "-",
                duration(project.used_slot_s),
                duration(project.used_gpu_s),
            )
            for project in found
        ),
        empty="no projects",
    )


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="Its name.")],
    share: Share = None,
    max_slots: Cap = None,
    quota: Quota = None,
    reserve: Reserve = None,
    json: Json = False,
) -> None:
    """Make a project."""
    with connect() as farm:
        made = farm.make_project(name, **_fields(share, max_slots, quota, reserve))
    _tell(made, "made", json=json)


@app.command()
def change(
    project: Annotated[str, typer.Argument(help="Name or id.")],
    name: Annotated[str | None, typer.Option("--name", help="A new name.")] = None,
    share: Share = None,
    max_slots: Cap = None,
    quota: Quota = None,
    reserve: Reserve = None,
    json: Json = False,
) -> None:
    """Change a project; what is not named stays."""
    fields = _fields(share, max_slots, quota, reserve) | ({} if name is None else {"name": name})
    if not fields:
        raise typer.BadParameter("name something to change; `farm projects change --help` lists it")
    with connect() as farm:
        changed = farm.change_project(_id_of(farm, project), **fields)
    _tell(changed, "changed", json=json)


def _id_of(farm: FarmClient, wanted: str) -> str:
    # a name may hold what a path may not
    for project in farm.projects():
        if wanted in (project.id, project.name):
            return project.id
    raise NotFound(f"there is no project {wanted!r}; `farm projects` lists them")


def _fields(share: float | None, cap: str | None, quota: str | None, reserve: bool | None) -> dict[str, Any]:
    """What was named; null lifts a limit."""
    fields: dict[str, Any] = {}
    if share is not None:
        fields["share"] = share
    if cap is not None:
        fields["max_slots"] = _limit("--max-slots", cap, int)
    if quota is not None:
        fields["quota_slot_s"] = _limit("--quota", quota, float)
    if reserve is not None:
        fields["reserved"] = reserve
    return fields


def _limit(option: str, text: str, kind: type[int] | type[float]) -> float | None:
    if text == NO_LIMIT:
        return None
    try:
        return kind(text)
    except ValueError:
        word = "a whole number" if kind is int else "a number of seconds"
        raise typer.BadParameter(f"{option} {text!r}: write {word}, or {NO_LIMIT!r} to lift it") from None


def _tell(project: Project, what: str, *, json: bool) -> None:
    if json:
        print_json(project.to_json())
        return
    keeps = "slots are kept for it" if project.reserved else "no slots are kept for it"
    terminal.say(f"{project.id} {project.name} {what}: share {project.share:g}, {keeps}")
