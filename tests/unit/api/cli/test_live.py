from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from api.cli.live import EtaEstimate, LinePrinter, looks
from farm.client.models import Job, Task
from farm.errors import Unavailable


def job(state: str = "running", done: int = 0, total: int = 10, **more: Any) -> Job:
    step = {
        "id": "step_1",
        "name": "render",
        "state": state,
        "tasks": {"running": total - done, "done": done},
        "frames_total": total,
        "frames_done": done,
        **more,
    }
    return Job.model_validate(
        {
            "id": "job_1",
            "name": "orbit",
            "kind": "render",
            "state": state,
            "project": {"id": "proj_1", "name": "default"},
            "user": {"id": "user_1", "name": "me"},
            "created_at": datetime(2026, 1, 1, tzinfo=UTC),
            "steps": [step],
        }
    )


def test_the_estimate_is_the_mean_speed_since_the_first_look() -> None:
    eta = EtaEstimate()
    assert eta.left(None) is None
    eta.see(0.5, 100.0)
    assert eta.left(33.0) == 33.0
    eta.see(0.75, 110.0)
    # a quarter took ten seconds, a quarter is left
    assert eta.left(33.0) == pytest.approx(10.0)


def test_work_that_goes_back_starts_the_estimate_anew() -> None:
    eta = EtaEstimate()
    eta.see(0.8, 0.0)
    eta.see(0.2, 10.0)
    assert eta.left(None) is None
    eta.see(0.6, 20.0)
    assert eta.left(None) == pytest.approx(10.0)


def test_lines_are_printed_for_news_and_not_for_every_look() -> None:
    lines: list[str] = []
    printer = LinePrinter(lines.append)
    printer.see(job("waiting"), 0)
    for second in range(1, 4):
        printer.see(job(done=0), second)
    printer.see(job(done=2), 5)
    printer.see(job(done=2), 6)
    printer.see(job("done", done=10), 7)
    assert lines == [
        "orbit: render running, 0/10 frames",
        "orbit: render running, 2/10 frames, eta 16 s",
        "orbit: render done, 10/10 frames",
    ]


def test_a_long_silence_is_broken_after_ten_seconds() -> None:
    lines: list[str] = []
    printer = LinePrinter(lines.append)
    printer.see(job(done=1), 0)
    printer.see(job(done=1), 9)
    printer.see(job(done=1), 11)
    assert len(lines) == 2


class Farm:
    """Answers ``job`` from a list; an exception in it is raised."""

    def __init__(self, *answers: Job | Exception) -> None:
        self.answers = list(answers)

    def job(self, job_id: str) -> Job:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_farm_that_is_away_for_a_while_is_waited_for() -> None:
    farm: Any = Farm(job(), Unavailable("gone"), Unavailable("gone"), job("done", done=10))
    states = [look.state for look in looks(farm, "job_1", sleep=lambda s: None)]
    assert states == ["running", "done"]


def test_a_farm_that_stays_away_is_an_error() -> None:
    farm: Any = Farm(Unavailable("gone"))
    clock = iter(range(0, 10_000, 50))
    with pytest.raises(Unavailable):
        list(looks(farm, "job_1", sleep=lambda s: None, clock=lambda: float(next(clock))))


def test_a_sample_that_is_denoised_moves_before_it_has_a_frame() -> None:
    lines: list[str] = []
    printer = LinePrinter(lines.append)
    task = Task.model_validate({"id": "task_1", "step_id": "step_1", "state": "running", "progress": 0.5})
    printer.see(job(total=1, frames_total=81), 0.0)
    printer.see(job(total=1, frames_total=81), 1.0, {"step_1": task})
    assert lines[0].startswith("orbit: render running, 0/81 frames")
    assert lines[1].startswith("orbit: render running, 50 % of 81 frames")
