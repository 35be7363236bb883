"""A run as it happens, in a folder: ``live.json``, written four times a second, and the farm's last pictures.

Whoever shows it (the dashboard's page *Stillness*) reads the files; nothing listens, and nothing waits for a
reader. Each file is replaced as a whole. Cheap, and on the farm's cores, but not free: a run that is to be
quoted is made without it.
"""

from __future__ import annotations

import contextlib
import json
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pinning.stillness.crew import FarmWorker
from gpu_pinning.stillness.sources import Source

NAME = "live.json"
PICTURE_VARIABLE = "STILLNESS_PICTURE"
"""Environment variable with the file that a farm worker keeps its last picture in."""
EVERY_S = 0.25
_POINTS = 480


class Live:
    """Writes what a run does into ``folder`` until :meth:`close`."""

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        """``about``: what decodes and where, for the page. An earlier run's files are removed."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for old in (folder / NAME, *folder.glob("picture-*.png")):
            old.unlink(missing_ok=True)
        self._about = about
        self._began = time.time()
        self._lock = threading.Lock()
        self._points: deque[list[Any]] = deque(maxlen=_POINTS)
        self._state: dict[str, Any] = {"arm": None, "working": False, "isolation": None, "note": "starting"}
        self._verdict: dict[str, Any] | None = None
        self._source: Source | None = None
        self._crew: list[FarmWorker] = []
        self._units: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.write()

    def picture(self, pool: str) -> Path:
        """Where a worker of that pool keeps its last picture."""
        return self.folder / f"picture-{pool}.png"

    def watch(self, source: Source, crew: Sequence[FarmWorker]) -> None:
        """Begin to follow decode and these workers."""
        self._source, self._crew = source, list(crew)
        self._thread.start()

    def now(self, arm: str | None, working: bool, isolation: bool | None) -> None:
        """What is done from this moment on. ``isolation`` None: no farm work."""
        self._state |= {"arm": arm, "working": working, "isolation": isolation}

    def say(self, note: str) -> None:
        """The run's own words."""
        self._state["note"] = note

    def end(self, verdict: str, reasons: Sequence[str]) -> None:
        """The run is over."""
        self._verdict = {"verdict": verdict, "reasons": list(reasons)}
        self.close()
        self.write()

    def close(self) -> None:
        """Stop writing."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(EVERY_S):
            now = time.monotonic()
            # a run that is being taken down has no load to ask any more
            with contextlib.suppress(Exception):
                self._point(last, now)
                self.write()
            last = now

    def _point(self, begin: float, end: float) -> None:
        assert self._source is not None
        steps = self._source.durations(begin, end)
        p50, p99 = (np.quantile(steps, (0.5, 0.99)) * 1000).tolist() if len(steps) else (None, None)
        state = self._state
        self._points.append([round(time.time() - self._began, 2), p50, p99, state["arm"], state["working"]])
        rates: dict[str, float] = {}
        for worker in self._crew:
            pool = worker.work.pool
            rates[pool] = rates.get(pool, 0.0) + worker.units(begin, end) / (end - begin)
            self._units[pool] = self._units.get(pool, 0.0) + worker.units(begin, end)
        self._state["rates"] = rates

    def write(self) -> None:
        """Write the state as it is."""
        found = {
            "version": 1,
            "at": time.time(),
            "began_at": self._began,
            **self._about,
            **self._state,
            "units": {pool: round(units) for pool, units in self._units.items()},
            "pictures": sorted(
                path.stem.removeprefix("picture-") for path in self.folder.glob("picture-*.png")
            ),
            "points": list(self._points),
            "over": self._verdict,
        }
        with self._lock:
            part = self.folder / f".{NAME}.part"
            part.write_text(json.dumps(found), encoding="utf-8")
            part.replace(self.folder / NAME)


def write_png(path: Path, pixels: Any) -> None:
    """An RGB picture, (height, width, 3) of uint8, as a PNG (no dependency beyond the standard library)."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, width * 3)], axis=1)

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header)
    png += part(b"IDAT", zlib.compress(rows.tobytes(), 1)) + part(b"IEND", b"")
    temporary = path.with_suffix(".part")
    temporary.write_bytes(png)
    temporary.replace(path)
