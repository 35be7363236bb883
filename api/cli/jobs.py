"""``farm jobs``, ``job`` and what a person may do with a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from api.cli import terminal
from api.cli.door import JobId, JobIds, connect, full_id, offer, offer_jobs
from api.cli.terminal import Json, print_json, state, table
from api.cli.text import ago, duration, percent, size

if TYPE_CHECKING:
    from farm.client.models import Job

app = typer.Typer()


def shown_state(job: Job) -> Text:
    """A job's state, with ``paused`` and ``cancelling`` where they apply."""
    if not job.ended and job.cancel_requested:
        return Text("cancelling", style="bright_black")
    if not job.ended and job.paused:
        return state("paused")
    return state(job.state)


def _amount(job: Job) -> str:
    if job.frames_total:
        return f"{job.frames_done}/{job.frames_total}"
    return f"{job.tasks.done}/{job.tasks.total}" if job.tasks.total else "–"  # noqa: RUF001


@app.command()
def jobs(
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            "-s",
            help="waiting, running, done, failed or cancelled.",
            autocompletion=offer("waiting", "running", "done", "failed", "cancelled"),
        ),
    ] = None,
    project: Annotated[str | None, typer.Option("--project", "-p", help="Only jobs of this project.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only jobs of this kind.")] = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="Text in the name.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many to show, newest first.")] = 30,
    json: Json = False,
) -> None:
    """List jobs, newest first."""
    with connect() as farm:
        found = list(farm.jobs(limit=limit, state=state, project=project, kind=kind, q=search))
    if json:
        print_json([job.to_json() for job in found])
        return
    table(
        ("JOB", "NAME", "KIND", "STATE", ">DONE", ">FRAMES", ">PRIO", "PROJECT", ">ETA", "SUBMITTED"),
        (
            (
                job.id,
                job.name,
                job.kind,
                shown_state(job),
                percent(job.fraction),
                _amount(job),
                job.priority,
                job.project.name,
                duration(job.eta_s) if not job.ended else "",
                ago(job.created_at),
            )
            for job in found
        ),
        empty="no jobs. Submit one: farm submit render scene.xml --frames 1-48",
    )


@app.command()
def job(job: JobId, json: Json = False) -> None:
    """Show one job: its steps, how far they are, and what went wrong."""
    with connect() as farm:
        found = farm.job(job)
        artifacts = farm.artifacts(job)
    if json:
        print_json(found.to_json() | {"artifacts": [artifact.to_json() for artifact in artifacts]})
        return
    console = terminal.out()
    console.print(
        Text.assemble((found.name, "bold"), "  ", shown_state(found), f"  {percent(found.fraction)}")
    )
    console.print(
        f"{found.id}  {found.kind}  priority {found.priority}  "
        f"project {found.project.name}  by {found.user.name}  {ago(found.created_at)}"
    )
    if found.labels:
        console.print("  ".join(f"{name}={value}" for name, value in found.labels.items()))
    if found.error:
        console.print(Text(found.error, style="red"))
    for warning in found.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
    console.print()
    table(
        ("STEP", "POOL", "STATE", ">DONE", ">FRAMES", ">TASKS", ">FAILED", ">ETA"),
        (
            (
                step.name,
                step.pool,
                state(step.state),
                percent(step.fraction),
                f"{step.frames_done}/{step.frames_total}" if step.frames_total else "",
                f"{step.tasks.done}/{step.tasks.total}",
                step.tasks.failed + step.tasks.unreachable or "",
                duration(step.eta_s) if step.state == "running" else "",
            )
            for step in found.steps
        ),
        empty="no steps",
    )
    for artifact in artifacts:
        console.print(f"{artifact.name}  {artifact.media_type}  {size(artifact.bytes)}  {artifact.id}")


@app.command()
def why(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="JOB|TASK",
            help="Id of a job (its beginning or end is enough) or of a task.",
            callback=full_id,
            autocompletion=offer_jobs,
        ),
    ],
    json: Json = False,
) -> None:
    """Say what a job or task waits for."""
    with connect() as farm:
        reasons = farm.why(subject)
    if json:
        print_json([reason.to_json() for reason in reasons])
        return
    if not reasons:
        terminal.say("nothing holds it back")
    for reason in reasons:
        terminal.out().print(Text(reason.text))


@app.command()
def cancel(jobs: JobIds) -> None:
    """Cancel jobs: what waits at once, what runs at its next step."""
    _each(jobs, "cancel", "cancelled")


@app.command()
def pause(jobs: JobIds) -> None:
    """Pause jobs: nothing new begins, running tasks park."""
    _each(jobs, "pause", "paused")


@app.command()
def resume(jobs: JobIds) -> None:
    """Let paused jobs go on."""
    _each(jobs, "resume", "resumed")


@app.command()
def retry(jobs: JobIds) -> None:
    """Run the failed tasks of jobs again; finished ones stay as they are."""
    _each(jobs, "retry", "retried")


@app.command()
def prioritise(
    job: JobId,
    priority: Annotated[int, typer.Argument(min=0, max=100, help="0 to 100; higher goes first.")],
) -> None:
    """Change a job's priority."""
    with connect() as farm:
        changed = farm.prioritise(job, priority)
    terminal.say(f"{changed.id} {changed.name}: priority {changed.priority}")


@app.command()
def delete(jobs: JobIds) -> None:
    """Delete ended jobs, with their frames and artifacts (`farm gc` frees the bytes)."""
    with connect() as farm:
        for one in jobs:
            farm.delete(one)
            terminal.say(f"{one} deleted")


def _each(jobs: list[str], verb: str, past: str) -> None:
    with connect() as farm:
        for one in jobs:
            changed: Job = getattr(farm, verb)(one)
            terminal.say(f"{changed.id} {changed.name}: {past}")
