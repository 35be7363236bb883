"""``farm models``: the video models that jobs may use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from api.cli import terminal
from api.cli.door import connect
from api.cli.gate import gate
from api.cli.terminal import Json, print_json, table
from api.cli.text import ago, size
from jobs.video.folder import inspect, place_of
from jobs.video.models import ModelFile, ModelVersion, body_of, check_folder

if TYPE_CHECKING:
    from farm.client.video_models import VideoModel

models = typer.Typer(invoke_without_command=True, help="List, add, check and remove video models.")
app = typer.Typer()
app.add_typer(models, name="models")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A model's name, or name@digest.")]


@models.callback()
def overview(context: typer.Context, json: Json = False) -> None:
    """List the models that jobs may use; the commands below change them."""
    if context.invoked_subcommand is None:
        _print_list(versions=False, json=json)


@models.command("list")
def list_models(
    versions: Annotated[bool, typer.Option("--versions", help="Older versions as well.")] = False,
    json: Json = False,
) -> None:
    """List the models that jobs may use."""
    _print_list(versions=versions, json=json)


@models.command()
def add(
    name: Annotated[str, typer.Argument(help="How jobs call it, such as wan2.1-1.3b.")],
    folder: Annotated[
        str,
        typer.Argument(help="A diffusers pipeline folder or its file:// address, the same on every node."),
    ],
    allow_remote_code: Annotated[
        bool,
        typer.Option(
            "--allow-remote-code", help="Let the folder's own Python run on every node. Read it first."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Add a model, or a new version of one. Its files are hashed here; they stay where they are."""
    version = find(name, place_of(folder), remote_code=allow_remote_code)
    with connect() as farm:
        made = farm.add_model(body_of(version))
    if json:
        print_json(made.to_json())
        return
    typer.echo(made.label)
    terminal.say(f"{made.title}: {', '.join(made.tasks)}; resume {made.resume}; {size(made.weight_bytes)}")


def find(name: str, folder: Path, *, remote_code: bool = False) -> ModelVersion:
    """Look into a folder, with a bar in a terminal. Raises :class:`farm.errors.InvalidInput`."""
    columns = (TextColumn("hashing"), BarColumn(bar_width=36), DownloadColumn(), TransferSpeedColumn())
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    with Progress(
        *columns, console=terminal.err(), disable=not terminal.interactive(), transient=True
    ) as progress:
        bar = progress.add_task("hashing", total=total)
        return inspect(
            name, folder, remote_code=remote_code, read=lambda nbytes: progress.advance(bar, nbytes)
        )


@models.command()
def check(
    name: Name,
    folder: Annotated[
        Path | None, typer.Option(help="Look here instead of in the folder that was added.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Hash small files alone; of weights look at sizes.")
    ] = False,
) -> None:
    """Check on this machine that a model's files are still those that were added."""
    with connect() as farm:
        found = farm.model(name)
    files = [ModelFile.model_validate(file) for file in found.files]
    check_folder(folder or Path(found.folder), files, hashes=not quick)
    what = "small files' hashes and sizes" if quick else "hashes"
    terminal.say(
        f"{found.label}: {len(files)} files, {size(sum(file.bytes for file in files))}, {what} right"
    )


models.command()(gate)


@models.command()
def show(name: Name) -> None:
    """Print all that is known of a model, as JSON."""
    with connect() as farm:
        print_json(farm.model(name).to_json())


@models.command()
def remove(name: Name) -> None:
    """Forget a model, or with name@digest one older version. Its files stay."""
    with connect() as farm:
        farm.remove_model(name)
    terminal.say(f"{name} is forgotten; its files are where they were")


def _print_list(*, versions: bool, json: bool) -> None:
    with connect() as farm:
        found = farm.models(versions=versions)
    if json:
        print_json([model.to_json() for model in found])
        return
    table(
        ("MODEL", "VERSION", "FAMILY", "TASKS", "RESUME", ">WEIGHTS", "ADDED", "FOLDER"),
        (_row(model) for model in found),
        empty="no models; add one with `farm models add NAME FOLDER`",
    )


def _row(model: VideoModel) -> tuple[str, ...]:
    return (
        model.name,
        model.digest[:12] + ("" if model.current else " (old)"),
        model.family,
        " ".join(model.tasks),
        model.resume,
        size(model.weight_bytes),
        ago(model.added_at),
        model.folder,
    )
