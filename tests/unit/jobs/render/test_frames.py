"""Frames are asked for ahead, and handed on once they turn out slow. The child answers from a script."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from farm.frame_range import FrameRange
from jobs.render.frames import render_frames
from jobs.render.held import Held
from tests.kinds.probe.engine import png
from tests.unit.jobs.local_host import LocalHost

OUTPUT = {
    "name": "a.png", "format": "png", "width": 1, "height": 1, "channels": ["R", "G", "B"],
    "dtype": "uint8", "color_space": "srgb",
}  # fmt: skip


class Script:
    """A child whose frames take as long as they are said to, without taking any time."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds = seconds
        self.asked: list[int] = []
        self.answered: list[int] = []
        self.child = SimpleNamespace(output=Path("/output"))

    def ask(self, op: str, *, number: int, folder: str) -> None:
        self.asked.append(number)

    def wait(self, *words: Any, number: int, share: tuple[float, float]) -> dict[str, Any]:
        assert number in self.asked, "the child would never answer"
        self.answered.append(number)
        return {"seconds": self.seconds[number], "started_at": 0.0}

    def take(self, answer: dict[str, Any], scratch: Path, what: str) -> dict[str, Path]:
        path = scratch / f"{what}.png"
        path.write_bytes(png(1, 1, (1, 2, 3)))
        return {"a.png": path}


def _render(tmp_path: Path, seconds: list[float], target_s: float | None) -> tuple[Script, LocalHost]:
    host = LocalHost(tmp_path, {})
    host.step, host.outputs = "render", {"render": [OUTPUT]}
    script = Script(dict(enumerate(seconds, start=1)))
    numbers = list(FrameRange.parse(f"1-{len(seconds)}"))
    task = cast(Any, SimpleNamespace(outputs=[OUTPUT]))
    times = render_frames(cast(Held, script), numbers, task, host, 60.0, {}, target_s)
    assert times == [script.seconds[number] for number in script.answered]
    # what was asked for is published, or the child would answer into the next task
    assert script.asked == script.answered == [number for _, number in sorted(host.published)]
    return script, host


@pytest.mark.parametrize(
    ("seconds", "target_s", "made"),
    [
        # planned as 10 x 2 s; after the second frame of 30 s nothing is begun: 90 s would be left
        ([2, 2, 2, 2, 2, 2, 30, 2, 2, 2], 20.0, 7),
        # after a quick frame two are under way already: the slow one's follower is finished too
        ([0.1, 0.1, 0.1, 30, 30, 2, 2, 2], 20.0, 5),
        # twice 20 s is allowed
        ([2, 2, 13, 1, 1, 1], 20.0, 6),
        # the slow frame is the last but one: there is nothing to gain
        ([2, 2, 2, 90, 2], 20.0, 5),
        # the job says how many frames a task has
        ([2, 90, 90, 90, 90], None, 5),
    ],
)
def test_slow_frames_hand_on_what_is_not_asked_for_yet(
    tmp_path: Path, seconds: list[float], target_s: float | None, made: int
) -> None:
    script, host = _render(tmp_path, [float(s) for s in seconds], target_s)
    assert script.answered == list(range(1, made + 1))
    assert bool(host.told) is (target_s is not None)


def test_what_else_is_to_do_is_done_while_the_child_renders_the_first_frame(tmp_path: Path) -> None:
    host = LocalHost(tmp_path, {})
    host.step, host.outputs = "render", {"render": [OUTPUT]}
    script = Script({4: 2.0, 5: 2.0})
    seen: list[tuple[list[int], list[int]]] = []
    task = cast(Any, SimpleNamespace(outputs=[OUTPUT]))

    def meanwhile() -> None:
        seen.append((list(script.asked), list(script.answered)))

    render_frames(cast(Held, script), [4, 5], task, host, 60.0, {}, meanwhile=meanwhile)
    # a task that has nothing left to render does it all the same
    render_frames(cast(Held, script), [], task, host, 60.0, {}, meanwhile=meanwhile)
    assert seen == [([4], []), ([4, 5], [4, 5])]
