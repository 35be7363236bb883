"""``farm profile``: where the time of a job's work goes on this machine, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli import terminal
from api.cli.door import connect
from api.cli.submit import set_field
from api.cli.terminal import Json, print_json, table
from farm.errors import InvalidInput

app = typer.Typer()
profile = typer.Typer(no_args_is_help=True, help="See where time goes on this machine.")
app.add_typer(profile, name="profile")


@profile.callback()
def _profile() -> None:
    """See where time goes on this machine."""


@profile.command()
def video(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model of the farm, or a pipeline folder.")],
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field of the job, such as size=832x480, device=cuda, compile=blocks."),
    ] = None,
    json: Json = False,
) -> None:
    """Make a short film here and tell each stage's time, arithmetic, bytes, and what bounds it.

    The arithmetic intensity of a stage stands against the ridge of this machine's device, measured just
    before. Needs no slot: stop the farm's own work on that device first, or the figures are of both.
    """
    spec: dict[str, Any] = {}
    for text in setting or []:
        set_field(spec, text)
    found = _generation(model, spec)
    from jobs.video.profile import profile as measure

    result = measure(found)
    if json:
        print_json(result.as_dict())
        return
    device = result.device
    terminal.say(
        f"{device.name}: {device.flop_per_s / 1e12:.2f} TFLOP/s ({found.dtype}), "
        f"{device.bytes_per_s / 1e9:.0f} GB/s, ridge at {device.ridge:.1f} operations a byte"
    )
    table(
        ("STAGE", ">CALLS", ">SECONDS", ">TFLOP", ">GB", ">FLOP/BYTE", "BOUND", ">REACHED", "WHAT TO CHANGE"),
        (
            (
                stage.name, str(stage.calls), f"{stage.seconds:.3f}", f"{stage.flop / 1e12:.3f}",
                f"{stage.bytes / 1e9:.2f}", f"{stage.intensity:.1f}", stage.bound,
                f"{stage.reached * 100:.0f} %" if stage.reached else "", stage.advice,
            )
            for stage in result.stages
        ),
        empty="",
    )  # fmt: skip


def _generation(model: str, fields: dict[str, Any]) -> Any:
    """The job's settings, resolved as submission would resolve them."""
    from jobs.registry import kind
    from jobs.video.folder import inspect
    from jobs.video.resolve import resolve
    from jobs.video.spec import Spec

    if Path(model).is_dir():
        version, name = inspect("profiled", Path(model)), "profiled"
    else:
        with connect() as farm:
            known = farm.model(model)
        version, name = inspect(known.name, Path(known.folder), remote_code=known.remote_code), known.name
    given = {
        "prompt": "a boat on the sea at dusk",
        "preset": "standard",
        "untested": True,
        **fields,
        "model": name,
    }
    spec = kind("video").parse(given)
    if not isinstance(spec, Spec):
        raise InvalidInput("the kind video has another spec than this command knows")
    if spec.inferred_task != "t2v":
        raise InvalidInput("only text to video is profiled: leave image, last_image and video out")
    return resolve(spec, version)
