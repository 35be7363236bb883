"""``farm models gate``: measure how a lossy choice changes a model's films, and keep it with the model."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from api.cli import terminal
from api.cli.door import connect
from api.cli.live import follow_job
from api.cli.submit import default_project, set_field
from api.cli.terminal import Json, print_json, table
from api.cli.watch import end_with
from farm.errors import InvalidInput, NotFound
from jobs.video.gates import MIN_PSNR_DB, MIN_SSIM

if TYPE_CHECKING:
    from farm.client import FarmClient

PROMPTS: Final = (
    "a red fox runs through fresh snow, the camera follows it from the side",
    "waves break on black rocks at sunset, seen from a low hill",
    "a woman in a yellow coat walks past shop windows at night, rain on the street",
    "a spinning wooden top on a table, sharp light from a window",
)
"""What is filmed where no prompts are named: motion, water, a person, and a still camera."""
_LOSSY: Final = frozenset({"cache", "quantisation", "attention"})


@dataclass(frozen=True, slots=True)
class Likeness:
    """One prompt's films compared: means over their frames."""

    prompt: str
    ssim: float
    psnr_db: float


def gate(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model's name, or name@digest.")],
    setting: Annotated[
        list[str],
        typer.Option(
            "--set", help="The choice, such as cache.kind=schedule and cache.skip=[10,12]; and size, steps…"
        ),
    ],
    prompt: Annotated[
        list[str] | None, typer.Option(help="A calibration prompt; repeat it. Left out: four general ones.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of every film.")] = 0,
    project: Annotated[str | None, typer.Option("--project", "-p", help="Who pays.")] = None,
    json: Json = False,
) -> None:
    """Film calibration prompts plainly and with a lossy choice (cache, fp8…), and compare frame by frame.

    The figures are kept with this version of the model: jobs may use the choice if its worst prompt reaches
    SSIM 0.95 and 30 dB, and are refused it otherwise.
    """
    plain: dict[str, Any] = {}
    for text in setting:
        set_field(plain, text)
    lossy = {field: plain.pop(field) for field in sorted(_LOSSY & set(plain))}
    if not lossy:
        raise typer.BadParameter("name a lossy choice with --set: cache.…, quantisation or attention")
    prompts = prompt or list(PROMPTS)
    with connect() as farm, tempfile.TemporaryDirectory(prefix="stillframe-gate-") as scratch:
        body = _body(farm, project)
        spec = {**plain, "model": name, "seeds": [seed], "film": None, "preview": False}
        pairs = [
            (
                farm.submit_body({**body, "spec": {**spec, "prompt": one}}).id,
                farm.submit_body({**body, "spec": {**spec, **lossy, "prompt": one, "untested": True}}).id,
            )
            for one in prompts
        ]
        end_with(farm, [follow_job(farm, job_id) for pair in pairs for job_id in pair])
        found = [_compare(farm, pair, one, Path(scratch)) for pair, one in zip(pairs, prompts, strict=True)]
        figures = _figures(_sidecar(farm, pairs[0][1], Path(scratch)), found)
        farm.measure_model(name, figures)
    if json:
        print_json({**figures, "prompts": [vars_of(one) for one in found]})
        return
    table(
        (">SSIM", ">PSNR", "PROMPT"),
        ((f"{one.ssim:.4f}", f"{one.psnr_db:.1f} dB", one.prompt) for one in found),
        empty="",
    )
    passed = figures["ssim"] >= MIN_SSIM and figures["psnr_db"] >= MIN_PSNR_DB
    verdict = "passes: jobs may use it" if passed else "is below the gate: jobs are refused it"
    terminal.say(f"{figures['choice']} on {name} {verdict}", style="green" if passed else "red")


def vars_of(one: Likeness) -> dict[str, Any]:
    """A comparison as JSON."""
    return {"prompt": one.prompt, "ssim": one.ssim, "psnr_db": one.psnr_db}


def _body(farm: FarmClient, project: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {"kind": "video", "name": "quality gate", "labels": {"purpose": "gate"}}
    if project is not None:
        body["project"] = project
    else:
        default_project(farm, body)
    return body


def _compare(farm: FarmClient, pair: tuple[str, str], prompt: str, scratch: Path) -> Likeness:
    """Fetch both films' frames, each pair checked and compared in turn."""
    import numpy as np
    from PIL import Image

    from jobs.video.likeness import psnr_db, ssim

    films = [list(farm.frames(job_id, state="published", current=True)) for job_id in pair]
    if len(films[0]) != len(films[1]) or not films[0]:
        raise InvalidInput(f"the films of {prompt!r} have {len(films[0])} and {len(films[1])} frames")
    figures = []
    for one, other in zip(*films, strict=True):
        pictures = []
        for index, frame in enumerate((one, other)):
            path = farm.download_frame(frame, frame.files[0].output, scratch / f"{index}.png")
            with Image.open(path) as image:
                pictures.append(np.asarray(image.convert("RGB")))
            path.unlink()
        figures.append((ssim(*pictures), psnr_db(*pictures)))
    means = np.mean(figures, axis=0)
    return Likeness(prompt, float(means[0]), float(means[1]))


def _sidecar(farm: FarmClient, job_id: str, scratch: Path) -> dict[str, Any]:
    """The record that the engine kept beside the frames: settings, and what really ran."""
    for artifact in farm.artifacts(job_id):
        if artifact.media_type == "application/json":
            path = farm.download_artifact(artifact, scratch / "sidecar.json")
            found: dict[str, Any] = json.loads(path.read_text())
            return found
    raise NotFound(f"job {job_id} kept no record of its settings")


def _figures(sidecar: dict[str, Any], found: Sequence[Likeness]) -> dict[str, Any]:
    settings, environment = sidecar["settings"], sidecar["environment"]
    builds = ", ".join(f"{name} {version}" for name, version in environment["builds"].items())
    return {
        "choice": settings["lossy"],
        "ssim": min(one.ssim for one in found),
        "psnr_db": min(one.psnr_db for one in found),
        "prompts": len(found),
        "steps": settings["steps"],
        "width": settings["width"],
        "height": settings["height"],
        "frames": settings["frames"],
        "measured_on": f"{environment['device']}; {builds}"[:400],
    }
