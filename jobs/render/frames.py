"""Renders the frames of a task: while one is verified and published, the child already renders the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from farm.errors import ParkRequested
from jobs.engine import Host, TaskContext
from jobs.render.held import Clock, Held

QUICK_FRAME_S: Final = 1.0
"""Below this the child is asked one frame further ahead, so that it never waits for its next request."""
_STAGED_FRAMES: Final = 3
"""One frame that is published, one that is rendered, one that is done before the first has been published."""
_ITEM_SIZE: Final = {"uint8": 1, "uint16": 2, "float16": 2, "float32": 4}


@contextmanager
def staging(task: TaskContext, host: Host) -> Iterator[None]:
    """Room for the files of the frames that are on their way."""
    staged = sum(o["width"] * o["height"] * len(o["channels"]) * _ITEM_SIZE[o["dtype"]] for o in task.outputs)
    with host.reserve(_STAGED_FRAMES * staged + 4096, "spool", "frame staging"):
        yield


def render_frames(
    held: Held,
    numbers: list[int],
    task: TaskContext,
    host: Host,
    timeout_s: float,
    request: Mapping[str, Any],
    target_s: float | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[float]:
    """Render ``numbers`` in order and publish each; the seconds that the child took for each frame.

    ``request`` is what every frame's request holds. ``target_s`` are the seconds that a task should last:
    where slow frames take it far beyond, those not asked for yet are handed on. None: never. ``meanwhile``
    is done while the child renders the first.

    Raises what the child's errors become, and :class:`farm.errors.ParkRequested` once the frame in work is
    published or has run out of patience.
    """
    times: list[float] = []
    width, height = (task.outputs[0]["width"], task.outputs[0]["height"]) if task.outputs else (0, 0)
    with staging(task, host), host.phase("work"):
        clock = Clock(timeout_s)
        park: ParkRequested | None = None
        asked = 0
        ending = False

        def ask(up_to: int) -> None:
            nonlocal asked
            for number in numbers[asked:up_to]:
                held.ask("frame", number=number, folder=str(held.child.output), **request)
                asked += 1

        ask(1)
        meanwhile()
        clock.skip()
        for index, number in enumerate(numbers):
            share = (index / len(numbers), 1 / len(numbers))
            answer: dict[str, Any] | None
            try:
                answer = held.wait(("frame",), f"frame {number}", clock, host, number=number, share=share)
            except ParkRequested as request_to_park:
                park = request_to_park
                answer = held.finish_soon(number, host)
                if answer is None:
                    raise
            clock = Clock(timeout_s)
            seconds = float(answer["seconds"])
            if park is None and target_s is not None:
                ending = host.hand_on(seconds, len(numbers) - asked, target_s)
            if park is None and not ending:
                ask(index + (3 if seconds < QUICK_FRAME_S else 2))
            times.append(seconds)
            publish_frame(held, answer, number, host)
            host.progress((index + 1) / len(numbers), f"frame {number}, {width}x{height}")
            if park is not None:
                raise park
            if index + 1 == asked:
                break
    return times


def publish_frame(held: Held, answer: Mapping[str, Any], number: int, host: Host) -> None:
    """Publish the files that the child has made for a frame."""
    with host.phase("write"):
        host.publish(
            number,
            held.take(answer, host.scratch, f"frame {number}"),
            started_at=float(answer["started_at"]),
            duration_s=float(answer["seconds"]),
            quality={**dict(answer.get("quality") or {}), "peak_rss": answer.get("peak_rss")},
        )
    host.log.write(f"frame {number}: {float(answer['seconds']):.2f} s")
