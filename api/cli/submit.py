"""``farm submit``: a scene or a job file becomes a job; what it needs is uploaded by hash."""

from __future__ import annotations

import importlib
import importlib.util
import json as jsonlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from api.cli import terminal
from api.cli.door import connect
from api.cli.folders import check_folder
from api.cli.live import follow_job
from api.cli.outputs import fetch, job_folder
from api.cli.terminal import Json, print_json
from api.cli.watch import end_with
from farm.errors import FieldFault, InvalidInput
from jobs.registry import kind as find_kind
from jobs.registry import kinds

if TYPE_CHECKING:
    from farm.client import FarmClient
    from farm.client.models import Job

app = typer.Typer()
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BODY_FIELDS = frozenset(
    {"kind", "name", "project", "priority", "labels", "spec", "assets", "after", "paused"}
)


@app.command()
def submit(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="Kind of job, such as render; a scene file says it by itself.", show_default=False
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Argument(help="The scene, the prompt, or whatever the kind works on.", show_default=False),
    ] = None,
    spec_file: Annotated[
        Path | None,
        typer.Option("--spec", help="JSON file with the whole job: kind, name, spec, assets (path: file)."),
    ] = None,
    frames: Annotated[str | None, typer.Option("--frames", "-f", help="Such as 1-48 or 1-100:2,200.")] = None,
    size: Annotated[str | None, typer.Option(help="Width and height, such as 320x180.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Samples per pixel.")] = None,
    output: Annotated[
        list[str] | None, typer.Option("--format", help="png, png16, jpeg, exr, exr32; repeat it for more.")
    ] = None,
    film: Annotated[
        list[str] | None, typer.Option("--film", help="Encode the frames: mp4 or webm; repeat it for both.")
    ] = None,
    fps: Annotated[str | None, typer.Option(help="Frames per second of the film.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed; a video job makes a sample for each.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Video: a model of the farm.")] = None,
    preset: Annotated[str | None, typer.Option(help="Video: draft, standard or final.")] = None,
    image: Annotated[Path | None, typer.Option(help="Video: picture that the film begins with.")] = None,
    last_image: Annotated[Path | None, typer.Option(help="Video: picture that it ends with.")] = None,
    video: Annotated[Path | None, typer.Option(help="Video: a film that is made over.")] = None,
    lora: Annotated[
        list[str] | None, typer.Option(help="Video: FILE or FILE:WEIGHT; repeat it for more.")
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(help="The project's folder, in which the job's paths start; the source's without it."),
    ] = None,
    allow_outside: Annotated[
        bool,
        typer.Option("--allow-outside", help="Send files, too, that a .blend names outside its folder."),
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any field of the spec, such as film.crf=18 or denoise=oidn."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Name of the job.")] = None,
    project: Annotated[str | None, typer.Option("--project", "-p", help="Who pays.")] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=100, help="Higher goes first.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", "-l", help="name=value; repeat it.")] = None,
    after: Annotated[list[str] | None, typer.Option(help="A job that must be done before.")] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Submit it paused.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow it to its end.")] = False,
    download: Annotated[
        Path | None, typer.Option("--download", "-o", help="With --watch: fetch what it made to here.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="The same key and job submit only once.")
    ] = None,
    json: Json = False,
) -> None:
    """Submit a job, e.g. `farm submit shot.blend --frames 1-48 --film mp4 --watch`. Prints its id."""
    options = {
        "frames": frames,
        "size": size,
        "samples": samples,
        "formats": output,
        "film": film,
        "fps": fps,
        "device": device,
        "seed": seed[0] if seed and len(seed) == 1 else None,
        "seeds": seed if seed and len(seed) > 1 else None,
        "model": model,
        "preset": preset,
        "image": image,
        "last_image": last_image,
        "video": video,
        "lora": lora,
        "allow_outside": allow_outside or None,
    }
    given = {field: value for field, value in options.items() if value not in (None, [])}
    if download is not None and not watch:
        raise typer.BadParameter("--download needs --watch: there is nothing to fetch before the job is done")
    if download is not None:
        check_folder(download, "--download")
    if spec_file is not None:
        if kind is not None or given:
            raise typer.BadParameter("--spec holds the whole job; leave out the kind and its options")
        body, files = read_job_file(spec_file)
    elif kind is None:
        raise typer.BadParameter(
            "name a source (farm submit shot.blend), a kind and a source, or --spec FILE"
        )
    else:
        if source is None:
            if kind in kinds():
                raise typer.BadParameter(f"name what is to be done: farm submit {kind} SOURCE")
            kind, source = kind_of(Path(kind)), kind
        body, files = from_source(kind, source, given, root)
        for note in getattr(files, "notes", ()):
            terminal.say(note)
    for text in setting or []:
        set_field(body["spec"], text)
    body |= {
        field: value
        for field, value in {
            "name": name,
            "project": project,
            "priority": priority,
            "labels": _labels(label) if label else None,
            "after": after or None,
            "paused": paused or None,
        }.items()
        if value is not None
    }
    with connect() as farm:
        default_project(farm, body)
        job = send(farm, body, files, idempotency_key)
        for warning in job.warnings:
            terminal.say(f"warning: {warning}")
        if json and not watch:
            print_json(job.to_json())
        elif not json:
            typer.echo(job.id)
        if watch:
            ended = follow_job(farm, job.id, json=json)
            end_with(farm, [ended])
            for path in fetch(farm, job.id, download / job_folder(job)) if download else []:
                typer.echo(str(path))


def send(
    farm: FarmClient, body: Mapping[str, Any], files: Mapping[str, Path], idempotency_key: str | None = None
) -> Job:
    """Upload the files that the farm lacks (with a bar in a terminal) and submit the job."""
    columns = (TextColumn("uploading"), BarColumn(bar_width=36), DownloadColumn(), TransferSpeedColumn())
    total = sum(path.stat().st_size for path in files.values() if path.is_file())
    with Progress(
        *columns, console=terminal.err(), disable=not terminal.interactive(), transient=True
    ) as progress:
        bar = progress.add_task("uploading", total=total)
        hashes = farm.upload(files, lambda nbytes: progress.advance(bar, nbytes))
    assets = {**body.get("assets", {}), **hashes}
    return farm.submit_body({**body, "assets": assets}, idempotency_key)


def from_source(
    kind: str, source: Path | str, options: Mapping[str, Any], root: Path | None = None
) -> tuple[dict[str, Any], dict[str, Path]]:
    """A job's body and the files it needs, by the kind's own shorthand (``jobs.KIND.shorthand.build``).

    A shorthand says which ``OPTIONS`` it takes, and may take its source as words (``TITLE`` makes the job's
    name of them). Raises :class:`farm.errors.InvalidInput`.
    """
    package = find_kind(kind).package
    if importlib.util.find_spec(f"{package}.shorthand") is None:
        raise InvalidInput(f"kind {kind} has no short form; write its job to a file and give it with --spec")
    shorthand = importlib.import_module(f"{package}.shorthand")
    odd = [f"--{name.replace('_', '-')}" for name in options if name not in shorthand.OPTIONS]
    if odd:
        takes = ", ".join(f"--{name.replace('_', '-')}" for name in shorthand.OPTIONS)
        raise InvalidInput(f"the short form of {kind} has no {', '.join(odd)}; it takes {takes}")
    words = getattr(shorthand, "TITLE", None)
    if words is not None:
        spec, files = shorthand.build(str(source), dict(options), root)
        return {"kind": kind, "name": words(str(source)), "spec": spec}, files
    spec, files = shorthand.build(Path(source), dict(options), root)
    return {"kind": kind, "name": Path(source).stem, "spec": spec}, files


def kind_of(source: Path) -> str:
    """The kind whose short form takes files with that suffix (``jobs.KIND.shorthand.SUFFIXES``).

    Raises :class:`farm.errors.InvalidInput` that says what to write.
    """
    known: dict[str, str] = {}
    for name, one in kinds().items():
        if importlib.util.find_spec(f"{one.package}.shorthand") is not None:
            module = importlib.import_module(f"{one.package}.shorthand")
            known |= dict.fromkeys(getattr(module, "SUFFIXES", ()), name)
    suffix = source.suffix.lower()
    if suffix not in known:
        raise InvalidInput(
            f"name a kind and a source: {source.name!r} alone does not tell the kind "
            f"(kinds: {', '.join(sorted(kinds()))}; files that do: {', '.join(sorted(known))})"
        )
    return known[suffix]


def read_job_file(path: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """A job file's body and the files it names; paths in it start at the file's own folder.

    Values of ``assets`` are files to upload, or SHA-256 of bytes that the farm has.
    """
    try:
        body = jsonlib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from None
    if not isinstance(body, dict) or not isinstance(body.get("spec"), dict) or "kind" not in body:
        raise InvalidInput(
            f'{path} must hold {{"kind": ..., "name": ..., "spec": {{...}}, "assets": {{path: file}}}}; '
            f"kinds are {', '.join(sorted(kinds()))}"
        )
    unknown = sorted(set(body) - _BODY_FIELDS)
    if unknown:
        message = f"{path} has no use for {', '.join(unknown)}; it takes {', '.join(sorted(_BODY_FIELDS))}"
        raise InvalidInput(message, [FieldFault(f"/{field}", message) for field in unknown])
    body.setdefault("name", path.stem)
    named = body.pop("assets", {})
    if not isinstance(named, dict) or not all(isinstance(value, str) for value in named.values()):
        raise InvalidInput(f"{path}: assets must map job paths to files", [FieldFault("/assets", "no map")])
    body["assets"] = {job_path: value for job_path, value in named.items() if _SHA256.fullmatch(value)}
    files = {
        job_path: path.parent / value for job_path, value in named.items() if not _SHA256.fullmatch(value)
    }
    return body, files


def default_project(farm: FarmClient, body: dict[str, Any]) -> None:
    """Without --project: the only project that the key sees, or the one called default."""
    if "project" in body:
        return
    names = [project.name for project in farm.projects()]
    if len(names) == 1 or "default" in names:
        body["project"] = names[0] if len(names) == 1 else "default"
        return
    raise InvalidInput(f"choose who pays with --project: {', '.join(names) or 'there is no project yet'}")


def _labels(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"--label {text!r}: write name=value, such as shot=s010")
        found[key] = value
    return found


def set_field(spec: dict[str, Any], text: str) -> None:
    """Set a field of the spec: ``a.b=value``, where the value is JSON if it reads as such, else text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"--set {text!r}: write field=value, such as denoise=oidn")
    try:
        parsed = jsonlib.loads(value)
    except ValueError:
        parsed = value
    *outer, last = key.split(".")
    for part in outer:
        inner = spec.setdefault(part, {})
        if not isinstance(inner, dict):
            raise typer.BadParameter(f"--set {text!r}: {part} is no group of fields")
        spec = inner
    spec[last] = parsed
