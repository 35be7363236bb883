"""Rendering the views of a task: while the next is drawn, the last ones are encoded and the first is
published.

The device draws and, where bytes are all that is asked for, rounds; threads encode and have the host check
what they wrote (the encoders let go of the interpreter), and the task's own thread publishes in order. On a
CPU the drawing takes all cores, and one view waits for none.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from jobs.engine import Host
from jobs.nerf.held import Held
from jobs.nerf.rendering import Picture, file_of, write_outputs
from jobs.nerf.scene import View
from jobs.nerf.shown import as_bytes, only_looked_at, write_bytes
from jobs.nerf.spec import Spec
from jobs.pacing import own_pace

Tensor = torch.Tensor
MOST_WAITING: Final = 16
"""Views that wait for an encoder or to be published: as much memory as they hold."""


@dataclass(frozen=True, slots=True)
class _Made:
    files: dict[str, Path]
    duration_s: float
    opacity: float


def make_views(
    held: Held,
    spec: Spec,
    numbered: Sequence[tuple[int, View]],
    host: Host,
    *,
    unit: float,
    threads: int,
    peak: Callable[[], int | None],
) -> None:
    """Render, write and publish views. ``unit``: source lengths per normalised length, for depth."""
    waiting: deque[tuple[int, float, Future[_Made]]] = deque()
    done = 0

    def publish_first() -> None:
        nonlocal done
        number, started, future = waiting.popleft()
        made = future.result()
        with host.phase("write"):
            host.publish(
                number,
                made.files,
                started_at=started,
                duration_s=made.duration_s,
                quality={"mean_opacity": round(made.opacity, 5)},
                peak_vram=peak(),
            )
        done += 1
        host.progress(done / len(numbered), f"view {number}, {numbered[0][1].width}x{numbered[0][1].height}")
        host.log.write(f"view {number}: {made.duration_s:.2f} s")

    plain = only_looked_at(spec)
    ahead = max(1, min(MOST_WAITING, threads)) if held.field.device.type == "cuda" else 1
    try:
        with ThreadPoolExecutor(max_workers=ahead, thread_name_prefix="encode") as pool:
            for number, view in numbered:
                host.check()
                began, started = time.monotonic(), time.time()
                with host.phase("work"):
                    parts = held.field.look_at(view, host.check)
                    encode = _bytes(parts, held, spec) if plain else _layers(parts, held, spec, view, unit)
                    work = _encode(encode, host, number, time.monotonic() - began)
                    waiting.append((number, started, pool.submit(work)))
                while len(waiting) >= ahead or (waiting and waiting[0][2].done()):
                    publish_first()
            while waiting:
                host.check()
                publish_first()
    finally:
        # the pool has ended: what was written and not published is not left behind
        for number, _, _ in waiting:
            for output in spec.outputs:
                file_of(host.scratch, number, output.name).unlink(missing_ok=True)


def begin_fetch(parts: Sequence[Tensor]) -> Callable[[], list[Any]]:
    """Start copying tensors to page-locked memory; arrays of them when it is called, from any thread."""
    if not parts[0].is_cuda:
        return lambda: [part.numpy() for part in parts]
    copies = [torch.empty(part.shape, dtype=part.dtype, pin_memory=True) for part in parts]
    for copy, part in zip(copies, parts, strict=True):
        own_pace().copy(copy, part, page_locked=True)
    cuda: Any = torch.cuda
    event = cuda.Event()
    event.record()

    def arrays() -> list[Any]:
        event.synchronize()
        return [copy.numpy() for copy in copies]

    return arrays


_Encode = Callable[[Path, int], tuple[dict[str, Path], float]]
"""Writes a view's outputs into a folder under its number; the files and the mean opacity."""


def _bytes(parts: tuple[Tensor, Tensor, Tensor], held: Held, spec: Spec) -> _Encode:
    fetch = begin_fetch(as_bytes(parts[0], parts[1], held.look, spec.transparent))

    def encode(folder: Path, number: int) -> tuple[dict[str, Path], float]:
        pixels, facts = fetch()
        return write_bytes(pixels, bool(facts[0]), spec, folder, number), float(facts[1])

    return encode


def _layers(parts: tuple[Tensor, Tensor, Tensor], held: Held, spec: Spec, view: View, unit: float) -> _Encode:
    fetch = begin_fetch([part.float() for part in parts])

    def encode(folder: Path, number: int) -> tuple[dict[str, Path], float]:
        picture = Picture(*fetch())
        files = write_outputs(picture, held.look, view, spec, folder, number, unit)
        return files, float(picture.opacity.mean())

    return encode


def _encode(encode: _Encode, host: Host, number: int, drawn_s: float) -> Callable[[], _Made]:
    folder = host.scratch

    def work() -> _Made:
        began = time.monotonic()
        files, opacity = encode(folder, number)
        duration_s = drawn_s + time.monotonic() - began
        host.examine(number, files)
        return _Made(files, duration_s, opacity)

    return work
