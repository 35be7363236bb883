"""``farm frames``, ``logs`` and ``download``: what a job made."""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from api.cli import terminal
from api.cli.door import JobId, connect, full_id, offer, offer_jobs
from api.cli.folders import check_folder
from api.cli.terminal import Json, print_json, state, table
from api.cli.text import duration, size
from farm.errors import InvalidInput, NotFound
from farm.frame_range import FrameRange

if TYPE_CHECKING:
    from farm.client import FarmClient
    from farm.client.models import Artifact, Attempt, Frame, Job

app = typer.Typer()


@app.command()
def frames(
    job: JobId,
    step: Annotated[str | None, typer.Option(help="Only frames of this step.")] = None,
    state_is: Annotated[
        str | None,
        typer.Option(
            "--state", "-s", help="pending or published.", autocompletion=offer("pending", "published")
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="How many; all without it.")
    ] = None,
    json: Json = False,
) -> None:
    """List a job's frames: state, time, size."""
    with connect() as farm:
        names = {one.id: one.name for one in farm.steps(job)}
        found = farm.frames(job, limit=limit, step=step, state=state_is)
        if json:
            print_json([frame.to_json() for frame in found])
            return
        table(
            ("STEP", ">FRAME", ">TAKE", "STATE", ">TIME", ">SIZE", ">BYTES", "OUTPUTS"),
            (
                (
                    names.get(frame.step_id, frame.step_id),
                    frame.number,
                    f"{frame.take}{'' if frame.is_current else ' (old)'}",
                    state(frame.state),
                    duration(frame.duration_s) if frame.duration_s is not None else "",
                    f"{frame.files[0].width}x{frame.files[0].height}" if frame.files else "",
                    size(sum(file.bytes for file in frame.files)) if frame.files else "",
                    " ".join(file.output for file in frame.files),
                )
                for frame in found
            ),
            empty="no frames",
        )


@app.command()
def attempts(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="JOB|TASK",
            help="Id of a job (its beginning or end is enough) or of a task.",
            callback=full_id,
            autocompletion=offer_jobs,
        ),
    ],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1)] = 50,
    json: Json = False,
) -> None:
    """List attempts: how each ended and where its time went."""
    with connect() as farm:
        found = list(farm.attempts(subject, limit=limit))
    if json:
        print_json([attempt.to_json() for attempt in found])
        return
    parts = ("queue_s", "fetch_s", "load_s", "work_s", "write_s", "held_s")
    table(
        ("ATTEMPT", "TASK", ">NO", "STATE", *(f">{part[:-2].upper()}" for part in parts), "ERROR"),
        (
            (
                attempt.id,
                attempt.task_id,
                attempt.number,
                state(attempt.state),
                *(duration(getattr(attempt, part)) for part in parts),
                (attempt.error or "").splitlines()[0][:80] if attempt.error else "",
            )
            for attempt in found
        ),
        empty="no attempts yet",
    )


@app.command()
def logs(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="JOB|TASK|ATTEMPT",
            help="A job shows its failed attempts, else its last.",
            callback=full_id,
            autocompletion=offer_jobs,
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on while the attempt runs.")] = False,
    json: Json = False,
) -> None:
    """Print the log of an attempt, of a task's last attempt, or of what failed in a job."""
    if follow and json:
        raise typer.BadParameter("--json prints what there is now; leave out --follow")
    with connect() as farm:
        if subject.startswith("att_"):
            if json:
                print_json([{"attempt_id": subject, "log": "".join(farm.log(subject))}])
                return
            _print_log(farm, subject, follow)
            return
        chosen = _worth_reading(list(farm.attempts(subject, limit=500)), subject)
        if json:
            print_json(
                [
                    {
                        "attempt_id": attempt.id,
                        "task_id": attempt.task_id,
                        "state": attempt.state,
                        "log": "".join(farm.log(attempt.id)),
                    }
                    for attempt in chosen
                ]
            )
            return
        for attempt in chosen:
            if len(chosen) > 1:
                terminal.say(f"--- {attempt.id} of {attempt.task_id}: {attempt.state}", style="bold")
            _print_log(farm, attempt.id, follow)


def _worth_reading(found: list[Attempt], subject: str) -> list[Attempt]:
    if not found:
        raise NotFound(f"{subject} has no attempts yet; `farm why {subject}` says what it waits for")
    failed = [attempt for attempt in found if attempt.state in ("failed", "lost")]
    newest = max(
        found, key=lambda attempt: (attempt.started_at is not None, attempt.started_at, attempt.number)
    )
    if subject.startswith("task_") or not failed:
        return [newest]
    return failed[-5:]


def _print_log(farm: FarmClient, attempt_id: str, follow: bool) -> None:
    for text in farm.follow_log(attempt_id) if follow else farm.log(attempt_id):
        sys.stdout.write(text)
        sys.stdout.flush()


@app.command()
def download(
    job: JobId,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write into.")] = Path(),
    films: Annotated[bool, typer.Option("--films", help="Only films and other artifacts.")] = False,
    only_frames: Annotated[bool, typer.Option("--frames-only", help="Only frames.")] = False,
    step: Annotated[str | None, typer.Option(help="Only this step.")] = None,
    numbers: Annotated[
        str | None, typer.Option("--frames", help="Only these frames, such as 1-48:2.")
    ] = None,
    json: Json = False,
) -> None:
    """Fetch films and frames into a folder of the job's own; each is checked by SHA-256. Prints the paths."""
    if films and (only_frames or numbers):
        raise typer.BadParameter("--films leaves out frames; drop it or the frame options")
    check_folder(output, "--output")
    wanted = FrameRange.parse(numbers) if numbers else None
    with connect() as farm:
        paths = fetch(
            farm,
            job,
            output / job_folder(farm.job(job)),
            artifacts=not only_frames and not numbers,
            frames=not films,
            step=step,
            numbers=wanted,
        )
    if json:
        print_json([str(path) for path in paths])
    else:
        for path in paths:
            typer.echo(str(path))
    if not paths:
        raise NotFound(f"{job} has made nothing that matches yet; `farm job {job}` says how far it is")


def fetch(
    farm: FarmClient,
    job_id: str,
    folder: Path,
    *,
    artifacts: bool = True,
    frames: bool = True,
    step: str | None = None,
    numbers: FrameRange | None = None,
) -> list[Path]:
    """Download what a job made into ``folder``: artifacts by name, frames as ``STEP/beauty.0001.png``."""
    names = {one.id: one.name for one in farm.steps(job_id)}
    work: list[tuple[Path, Artifact | tuple[Frame, str], int]] = []
    if artifacts:
        for artifact in farm.artifacts(job_id):
            if step is None or names.get(artifact.step_id) == step:
                work.append((folder / plain_name(artifact.name), artifact, artifact.bytes))
    if frames:
        for frame in farm.frames(job_id, step=step, state="published", current=True):
            if numbers is not None and frame.number not in numbers:
                continue
            for file in frame.files:
                name = numbered_name(plain_name(file.output), frame.number)
                target = folder / plain_name(names.get(frame.step_id, frame.step_id)) / name
                work.append((target, (frame, file.output), file.bytes))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=36),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    paths = []
    with Progress(*columns, console=terminal.err(), disable=not terminal.interactive()) as progress:
        bar = progress.add_task("downloading", total=sum(nbytes for _, _, nbytes in work))
        for target, thing, _ in work:
            if isinstance(thing, tuple):
                path = farm.download_frame(*thing, target, lambda n: progress.advance(bar, n))
            else:
                path = farm.download_artifact(thing, target, lambda n: progress.advance(bar, n))
            paths.append(path)
    return paths


def job_folder(job: Job) -> str:
    """A folder's name for what a job made, such as ``turntable-3f9a1c``: no other job's is the same."""
    name = re.sub(r"[^\w.-]+", "-", job.name).strip("-.")[:80]
    return f"{name or job.kind}-{job.id[-6:]}"


def plain_name(name: str) -> str:
    """A name made by a job as one that stays in its folder. Raises for what cannot be a file name."""
    last = PurePosixPath(name.replace("\\", "/")).name
    if last in ("", ".", "..") or any(ord(char) < 32 for char in last):
        raise InvalidInput(f"the farm names a file {name!r}, which cannot be a file name here")
    return last


def numbered_name(output: str, number: int) -> str:
    """``beauty.png`` and 12 to ``beauty.0012.png``, the order that film tools expect."""
    stem, dot, suffix = output.rpartition(".")
    text = f"{number:04d}" if number >= 0 else f"-{-number:04d}"
    return f"{stem}.{text}.{suffix}" if dot else f"{output}.{text}"
