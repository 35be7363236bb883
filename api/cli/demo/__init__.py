"""``farm demo``: a farm of its own renders the films that the project ships."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from api.cli import terminal
from api.cli.demo.films import FILMS, DemoFilm
from api.cli.demo.interrupts import Interrupts
from api.cli.demo.own_farm import OwnFarm
from api.cli.folders import check_folder
from api.cli.live import follow_job
from api.cli.watch import end_with
from farm.client import FarmClient
from farm.client.models import Job

app = typer.Typer()


@app.command()
def demo(
    only: Annotated[
        str, typer.Option(help=f"Films to make, by comma: all, or {', '.join(film.name for film in FILMS)}.")
    ] = "all",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the films.")] = Path("demo-out"),
) -> None:
    """Render the demo films on a farm of their own. The last line on stdout is the turntable's path."""
    chosen = choose(only)
    check_folder(output, "--output")
    interrupts = Interrupts()
    with interrupts, OwnFarm(output, interrupts) as own:
        with FarmClient.of(own.credentials) as farm:
            make(farm, chosen, output)
        if sys.stdout.isatty():
            serve(own)


def choose(only: str) -> list[DemoFilm]:
    """The films that ``--only`` names, in the order in which they are printed: the turntable comes last."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = {film.name: film for film in FILMS}
    unknown = [name for name in names if name != "all" and name not in known]
    if unknown or not names:
        raise typer.BadParameter(f"--only {only!r}: there are all, {', '.join(known)}")
    chosen = [film for film in FILMS if "all" in names or film.name in names]
    absent = [film.name for film in chosen if not film.available()]
    if absent and "all" not in names:
        raise typer.BadParameter(f"--only {only!r}: this tree lacks what {', '.join(absent)} is made from")
    if absent:
        terminal.say(f"left out, for this tree lacks what they are made from: {', '.join(absent)}")
    return [film for film in chosen if film.name not in absent]


def make(farm: FarmClient, films: list[DemoFilm], output: Path) -> None:
    """Submit every film, then follow each to its end, fetch it, and print its path on stdout."""
    jobs: list[tuple[DemoFilm, Job]] = []
    for film in films:
        job = film.submit(farm)
        terminal.say(f"{film.name}: submitted as {job.id}")
        jobs.append((film, job))
    for film, job in jobs:
        ended = follow_job(farm, job.id)
        end_with(farm, [ended], advise=False)
        path = film.fetch(farm, job.id, output)
        took = (ended.finished_at - ended.created_at).total_seconds() if ended.finished_at else 0.0
        terminal.say(f"{film.name}: {ended.frames_done} frames and the film verified, {took:.0f} s")
        if figure := film.figure(farm, job.id):
            terminal.say(f"{film.name}: {figure}")
        sys.stdout.write(f"{path}\n")
        sys.stdout.flush()


def serve(own: OwnFarm) -> None:
    """Keep the farm up until Ctrl-C."""
    terminal.say("")
    terminal.say(f"The dashboard is at {own.credentials.url}")
    terminal.say(f"Sign in with the key {own.credentials.key}")
    terminal.say("Ctrl-C ends it.")
    try:
        while own.running:
            time.sleep(0.2)
    except KeyboardInterrupt:
        return
