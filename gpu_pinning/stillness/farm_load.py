"""Farm work as the bench runs it, a stamp a unit: ``python -m gpu_pinning.stillness.farm_load POOL STAMPS``.

What is installed is what runs: ``encode`` is x264 through PyAV, ``render`` Mitsuba; where they are missing
zlib and numpy stand in for them, which every report says. ``gpu`` is a denoise loop of Wan's shapes and NeRF
training, in turns, ``denoise`` a small loop whose result can be compared. A unit is a frame, a rendered
picture, a transformer block with a training step, or a small denoise step. Threads come from
``OMP_NUM_THREADS``, as the plan sets it. With ``STILLNESS_COPIES`` so many processes do the same, each in a
session of its own and with stamps of its own (``STAMPS``, ``STAMPS.1``, …).
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_pinning.stillness.stamps import StampWriter

POOLS = ("encode", "render", "gpu", "denoise")
COPIES_VARIABLE = "STILLNESS_COPIES"
DEVICE_VARIABLE = "STILLNESS_DEVICE"
"""``cuda`` without it; ``cpu`` takes small shapes, to try on a machine without GPUs what the loads do."""
_WIDTH, _HEIGHT = 832, 480
_LOOK_AHEAD = 10
_PR_SET_PDEATHSIG = 1


def kind_of(pool: str) -> str:
    """What stands for the pool on this machine, in words."""
    if pool == "encode":
        return "x264 through PyAV" if _has("av") else "zlib (stands in for PyAV, which is not installed)"
    if pool == "render":
        return "Mitsuba" if _has("mitsuba") else "numpy (stands in for Mitsuba, which is not installed)"
    if pool == "gpu":
        whose = "diffusers' own blocks" if _has("diffusers") else "torch blocks of its shapes"
        return (
            f"in turns a denoise loop of Wan 2.1 1.3B ({whose}, 832x480x81, random weights, frames copied to "
            "the host) and NeRF training"
        )
    return "small DiT-shaped denoise loop in torch"


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def threads() -> int:
    """Threads that the plan gives."""
    return max(1, int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))


def make_unit(pool: str) -> Callable[[], None]:
    """A function that does one unit of the pool's work. Raises :class:`ValueError` for an unknown pool."""
    if pool not in POOLS:
        raise ValueError(f"pool is {pool!r}, but must be one of {', '.join(POOLS)}")
    if pool == "encode":
        return _encode_with_av() if _has("av") else _compress()
    if pool == "render":
        return _render_with_mitsuba() if _has("mitsuba") else _arithmetic()
    from gpu_pinning.stillness import gpu_load

    device = os.environ.get(DEVICE_VARIABLE, "cuda")
    return gpu_load.video_and_nerf(device) if pool == "gpu" else gpu_load.denoise(device)


_shown_at = 0.0


def _show(picture: Callable[[], Any]) -> None:
    """Keep the last picture where somebody watches the run live; twice a second at most."""
    global _shown_at
    target = os.environ.get("STILLNESS_PICTURE")
    if not target or time.monotonic() - _shown_at < 0.5:
        return
    from gpu_pinning.stillness.live import write_png

    _shown_at = time.monotonic()
    write_png(Path(target), picture())


def _frames() -> list[Any]:
    import numpy as np

    random = np.random.default_rng(1)
    base = random.integers(0, 255, (_HEIGHT, _WIDTH, 3), dtype=np.uint8)
    return [np.roll(base, 7 * n, axis=1) for n in range(8)]


def _encode_with_av() -> Callable[[], None]:
    """One film without end: opening and flushing would make some frames cost nothing, and others a second."""
    import av

    pictures = _frames()
    container = av.open(os.devnull, "w", format="h264")
    stream: Any = container.add_stream("libx264", rate=24)
    stream.width, stream.height, stream.pix_fmt = _WIDTH, _HEIGHT, "yuv420p"
    stream.thread_count = threads()
    stream.options = {"preset": "medium", "crf": "20", "rc-lookahead": str(_LOOK_AHEAD)}
    count = 0
    made = hashlib.sha256()

    def unit() -> None:
        nonlocal count
        picture = pictures[count % len(pictures)]
        _show(lambda: picture[::4, ::4])
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame.pts = count
        for packet in stream.encode(frame):
            made.update(bytes(packet))
            container.mux(packet)
        count += 1

    # frames that are only queued come first
    for _ in range(_LOOK_AHEAD + 4 + threads()):
        unit()
    unit.result = made.hexdigest  # type: ignore[attr-defined]
    return unit


def _compress() -> Callable[[], None]:
    import zlib
    from concurrent.futures import ThreadPoolExecutor

    pictures = [picture.tobytes() for picture in _frames()]
    workers = threads()
    pool = ThreadPoolExecutor(workers)
    made = hashlib.sha256()

    def unit() -> None:
        _show(lambda: _frames()[0][::4, ::4])
        # zlib lets go of the interpreter, so that threads fill their cores
        for packed in pool.map(lambda n: zlib.compress(pictures[n % len(pictures)], 6), range(workers)):
            made.update(packed)

    unit.result = made.hexdigest  # type: ignore[attr-defined]
    return unit


def _render_with_mitsuba() -> Callable[[], None]:
    import mitsuba as mi
    import numpy as np

    # the variant that needs nothing else; drjit's pool is what its threads come from
    mi.set_variant("scalar_rgb")
    mi.set_log_level(mi.LogLevel.Error)
    import drjit as dr

    dr.set_thread_count(threads())
    box: Any = mi.cornell_box
    told = box()
    told["sensor"]["film"]["width"] = told["sensor"]["film"]["height"] = 96
    scene = mi.load_dict(told)
    seed = 0

    render: Any = mi.render

    def unit() -> None:
        nonlocal seed
        seed += 1
        picture = render(scene, spp=8, seed=seed)
        _show(
            lambda: np.asarray(
                mi.Bitmap(picture).convert(mi.Bitmap.PixelFormat.RGB, mi.Struct.Type.UInt8, True)
            )
        )

    return unit


def _arithmetic() -> Callable[[], None]:
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    workers = threads()
    pool = ThreadPoolExecutor(workers)
    fields = [np.random.default_rng(n).random((512, 512)).astype(np.float32) for n in range(workers)]

    def shade(n: int) -> None:
        field = fields[n]
        for _ in range(20):
            np.sin(field, out=field)
            np.sqrt(np.abs(field), out=field)

    def unit() -> None:
        list(pool.map(shade, range(workers)))
        _show(lambda: np.repeat((fields[0][::4, ::4, None] * 255).astype(np.uint8), 3, axis=2))

    return unit


def main(pool: str, stamps: str, units: int = 0, gate: str = "") -> None:
    """Work until killed, or for so many units and then print what came out; ends with its parent.

    With ``gate`` everything is loaded first; then ``gate.ready`` is written, and the work waits for ``gate``.
    """
    die_with_parent()
    parent = os.getppid()
    first, stamps = stamps, _copy(pool, stamps)
    if stamps != first:
        # a copy ends with the one that it was copied from
        parent = os.getppid()
    unit = make_unit(pool)
    unit()
    if gate:
        Path(f"{gate}.ready").touch()
        while os.getppid() == parent and not Path(gate).exists():
            # seldom: many copies wait, and decode learns meanwhile what is normal
            time.sleep(0.02)
    writer = StampWriter(Path(stamps))
    done = 0
    while os.getppid() == parent and (not units or done < units):
        unit()
        writer.stamp()
        done += 1
    if units and stamps == first and hasattr(unit, "result"):
        print(unit.result(), flush=True)


def die_with_parent() -> None:
    """The kernel ends this process with its parent, also while it is stopped."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _copy(pool: str, stamps: str) -> str:
    """Become several processes where that is asked for; the stamp file of the one that this is.

    Forked before anything has threads: one import serves all of them.
    """
    copies = int(os.environ.get(COPIES_VARIABLE) or 1)
    if copies > 1:
        for module in ("numpy", *(("av",) if pool == "encode" and _has("av") else ())):
            importlib.import_module(module)
    for number in range(1, copies):
        if os.fork() == 0:
            os.setsid()
            die_with_parent()
            return f"{stamps}.{number}"
    return stamps


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0, *sys.argv[4:5])
