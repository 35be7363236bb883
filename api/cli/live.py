"""Following a job to its end: progress bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TaskID, TextColumn
from rich.progress import Task as BarTask
from rich.text import Text

from api.cli import terminal
from api.cli.picture import blocks
from api.cli.text import duration, percent
from farm.errors import Unavailable

if TYPE_CHECKING:
    from farm.client import FarmClient
    from farm.client.models import Job, Step, Task

POLL_S = 0.5
LINE_EVERY_S = 10.0
LINE_STEP = 0.10
GIVE_UP_S = 120.0
LEAST_PROGRESS = 0.04


@dataclass(slots=True)
class EtaEstimate:
    """Seconds left of a piece of work: from the progress seen here, else the farm's own figure.

    What is seen here moves with every frame, the farm's figure with every finished task. The estimate uses
    the mean speed since the first look, once there is a little progress to go by.
    """

    first: tuple[float, float] | None = None
    last: tuple[float, float] | None = None

    def see(self, fraction: float, now: float) -> None:
        """Note that ``fraction`` (0 to 1) was reached at ``now`` (seconds, monotonic)."""
        if self.first is None or fraction < self.first[1]:
            self.first = (now, fraction)
        self.last = (now, fraction)

    def left(self, said: float | None) -> float | None:
        """Seconds left; ``said`` is the farm's figure."""
        if self.first is None or self.last is None:
            return said
        elapsed, gained = self.last[0] - self.first[0], self.last[1] - self.first[1]
        if gained < LEAST_PROGRESS or elapsed <= 0:
            return said
        return elapsed * (1 - self.last[1]) / gained


def looks(
    farm: FarmClient,
    job_id: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Job]:
    """The job again and again until it has ended; rides out a farm that is away for a while."""
    away: float | None = None
    while True:
        try:
            look = farm.job(job_id)
            away = None
        except Unavailable:
            away = clock() if away is None else away
            if clock() - away > GIVE_UP_S:
                raise
            sleep(POLL_S)
            continue
        yield look
        if look.ended:
            return
        sleep(POLL_S)


def follow_job(farm: FarmClient, job_id: str, *, json: bool = False) -> Job:
    """Show a job until it ends; returns it as it ended. Progress goes to stderr, JSON lines to stdout."""
    if json:
        return _as_json(farm, job_id)
    if terminal.interactive():
        return _as_bars(farm, job_id, terminal.err())
    return _as_lines(farm, job_id)


def _as_json(farm: FarmClient, job_id: str) -> Job:
    shown: dict[str, object] | None = None
    for look in looks(farm, job_id):
        if look.to_json() != shown:
            shown = look.to_json()
            terminal.print_json_line(shown)
    return look


class _Eta(ProgressColumn):
    def render(self, task: BarTask) -> Text:
        left = task.fields.get("eta")
        if task.finished or left is None:
            return Text("")
        return Text(f"eta {duration(left)}", style="cyan")


def _as_bars(farm: FarmClient, job_id: str, console: Console) -> Job:
    columns = (
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.fields[label]}"),
        BarColumn(bar_width=36, complete_style="cyan", finished_style="green"),
        TextColumn("{task.fields[amount]}"),
        _Eta(),
    )
    bars: dict[str, TaskID] = {}
    etas: dict[str, EtaEstimate] = {}
    progress = Progress(*columns, console=console, auto_refresh=False)
    with Live(progress, console=console, refresh_per_second=5) as live:
        for look in looks(farm, job_id):
            now = time.monotonic()
            begun = _begun(farm, look)
            picture = _picture(farm, begun, console)
            live.update(Group(progress, picture) if picture is not None else progress)
            for step in look.steps:
                eta = etas.setdefault(step.id, EtaEstimate())
                fraction = _fraction(step, begun)
                if step.state != "waiting":
                    eta.see(fraction, now)
                if step.id not in bars:
                    bars[step.id] = progress.add_task(
                        step.name, total=1.0, label=step.name, amount="", eta=None
                    )
                left = eta.left(step.eta_s) if step.state == "running" else None
                done = 1.0 if step.state == "done" else min(fraction, 0.999)
                progress.update(bars[step.id], completed=done, amount=_amount(step, fraction), eta=left)
        live.update(progress)
    return look


def _begun(farm: FarmClient, look: Job) -> dict[str, Task]:
    """Step to its one task at work, of a job whose frames all come at the end (a video)."""
    if look.kind != "video" or look.state != "running":
        return {}
    return {task.step_id: task for task in farm.tasks(look.id, state="running", limit=20)}


def _fraction(step: Step, begun: Mapping[str, Task]) -> float:
    """How far a step is: by its frames, or by what its one task says."""
    task = begun.get(step.id)
    if task is None or task.progress is None or step.state != "running":
        return step.fraction
    return max(step.fraction, task.progress)


def _picture(farm: FarmClient, begun: Mapping[str, Task], console: Console) -> Text | None:
    """What the first task at work shows, where the terminal has the colours for it."""
    if not begun or console.color_system != "truecolor":
        return None
    found = farm.preview(next(iter(begun.values())).id)
    return blocks(found, min(48, console.width - 2)) if found is not None else None


def _amount(step: Step, fraction: float = 0.0) -> str:
    if step.frames_total and not step.frames_done and fraction > step.fraction:
        text = f"{percent(fraction)} of {step.frames_total} frames"
    elif step.frames_total:
        text = f"{step.frames_done}/{step.frames_total} frames"
    elif step.tasks.total > 1:
        text = f"{step.tasks.done}/{step.tasks.total} tasks"
    else:
        text = percent(step.fraction)
    return f"{text}, {step.tasks.failed} failed" if step.tasks.failed else text


@dataclass(slots=True)
class LinePrinter:
    """Chooses when a plain line is worth printing: a new state, ten per cent more, or ten seconds on."""

    write: Callable[[str], None]
    shown: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    etas: dict[str, EtaEstimate] = field(default_factory=dict)

    def see(self, look: Job, now: float, begun: Mapping[str, Task] | None = None) -> None:
        """Print the lines that this look at the job is worth; ``begun``: tasks at work by step."""
        for step in look.steps:
            before = self.shown.get(step.id)
            if step.state == "waiting" and before is None:
                continue
            eta = self.etas.setdefault(step.id, EtaEstimate())
            fraction = _fraction(step, begun or {})
            eta.see(fraction, now)
            news = before is None or before[0] != step.state
            if before is not None and not news and step.state == "running":
                moved = fraction - before[1]
                news = moved >= LINE_STEP or (now - before[2] >= LINE_EVERY_S)
            if not news:
                continue
            self.shown[step.id] = (step.state, fraction, now)
            left = eta.left(step.eta_s) if step.state == "running" else None
            tail = f", eta {duration(left)}" if left is not None else ""
            self.write(f"{look.name}: {step.name} {step.state}, {_amount(step, fraction)}{tail}")


def _as_lines(farm: FarmClient, job_id: str) -> Job:
    printer = LinePrinter(terminal.say)
    for look in looks(farm, job_id):
        printer.see(look, time.monotonic(), _begun(farm, look))
    terminal.say(f"{look.name}: {look.state}")
    return look
