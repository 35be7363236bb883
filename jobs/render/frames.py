"""Renders the frames of a task: while one is verified and published, the child already renders the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from farm.errors import ParkRequested
from jobs.engine import Host, TaskContext
from jobs.render.held import Clock, Held

_ITEM_SIZE: Final = {"uint8": 1, "uint16": 2, "float16": 2, "float32": 4}


@contextmanager
def staging(task: TaskContext, host: Host) -> Iterator[None]:
    """Room for two frames' files: the one that is published and the one that is rendered."""
    staged = sum(o["width"] * o["height"] * len(o["channels"]) * _ITEM_SIZE[o["dtype"]] for o in task.outputs)
    with host.reserve(2 * staged + 4096, "spool", "frame staging"):
        yield


def render_frames(
    held: Held,
    numbers: list[int],
    task: TaskContext,
    host: Host,
    timeout_s: float,
    request: Mapping[str, Any],
) -> list[float]:
    """Render ``numbers`` in order and publish each; the seconds that the child took for each frame.

    ``request`` is what every frame's request holds.

    Raises what the child's errors become, and :class:`farm.errors.ParkRequested` once the frame in work is
    published or has run out of patience.
    """
    times: list[float] = []
    width, height = (task.outputs[0]["width"], task.outputs[0]["height"]) if task.outputs else (0, 0)
    with staging(task, host), host.phase("work"):
        clock = Clock(timeout_s)
        park: ParkRequested | None = None
        if numbers:
            _ask(held, numbers[0], request)
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
            if park is None and index + 1 < len(numbers):
                _ask(held, numbers[index + 1], request)
            times.append(float(answer["seconds"]))
            publish_frame(held, answer, number, host)
            host.progress((index + 1) / len(numbers), f"frame {number}, {width}x{height}")
            if park is not None:
                raise park
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


def _ask(held: Held, number: int, request: Mapping[str, Any]) -> None:
    held.ask("frame", number=number, folder=str(held.child.output), **request)
