"""``farm watch``: follow jobs until they end."""

from __future__ import annotations

import typer

from api.cli import terminal
from api.cli.jobs import JobIds
from api.cli.live import follow_job
from api.cli.terminal import Json
from farm.client import FarmClient
from farm.client.models import Job

app = typer.Typer()


@app.command()
def watch(jobs: JobIds, json: Json = False) -> None:
    """Follow jobs with progress and ETA until they end; exits 3 when one failed or was cancelled."""
    with FarmClient.connect() as farm:
        ended = [follow_job(farm, one, json=json) for one in jobs]
    end_with(ended)


def end_with(jobs: list[Job]) -> None:
    """Say why jobs did not succeed, and exit with 3 if any did not."""
    bad = [job for job in jobs if job.state != "done"]
    for job in bad:
        terminal.say(
            f"{job.name} {job.state}{': ' + job.error if job.error else ''}. "
            f"See `farm job {job.id}` and `farm logs {job.id}`"
            + ("; `farm retry` runs its failed tasks again" if job.state == "failed" else ""),
            style="red",
        )
    if bad:
        raise typer.Exit(terminal.EXIT_JOB_FAILED)
