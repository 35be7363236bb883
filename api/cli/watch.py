"""``farm watch``: follow jobs until they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from api.cli import terminal
from api.cli.door import JobIds, connect
from api.cli.live import follow_job
from api.cli.terminal import Json

if TYPE_CHECKING:
    from farm.client import FarmClient
    from farm.client.models import Job

app = typer.Typer()


REASONS = 3


@app.command()
def watch(jobs: JobIds, json: Json = False) -> None:
    """Follow jobs with progress and ETA until they end; exits 3 when one failed or was cancelled."""
    with connect() as farm:
        end_with(farm, [follow_job(farm, one, json=json) for one in jobs])


def end_with(farm: FarmClient, jobs: list[Job], *, advise: bool = True) -> None:
    """Say why jobs did not succeed, and exit with 3 if any did not. ``advise``: and what to do about it."""
    bad = [job for job in jobs if job.state != "done"]
    for job in bad:
        terminal.say(f"{job.name} {job.state}", style="red")
        for text in failures(farm, job):
            terminal.say(f"  {text}")
        if advise:
            again = f"; `farm retry {job.id}` runs its failed tasks again" if job.state == "failed" else ""
            terminal.say(f"See `farm job {job.id}` and `farm logs {job.id}`{again}")
    if bad:
        raise typer.Exit(terminal.EXIT_JOB_FAILED)


def failures(farm: FarmClient, job: Job) -> list[str]:
    """What went wrong in a job, newest first, each thing once."""
    errors = [job.error] if job.error else []
    errors += [attempt.error for attempt in farm.attempts(job.id, state="failed", limit=50) if attempt.error]
    return list(dict.fromkeys(errors))[:REASONS]
