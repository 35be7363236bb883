"""One open file, set up for one job, and its frames."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import findings, opening, pictures, setup
from .faults import Fault

_EVENT_INTERVAL_S = 0.25
_SAMPLES = re.compile(r"[Ss]ample (\d+)/(\d+)|(\d+) ?/ ?(\d+) samples")


class Session:
    """State of the child. ``send`` passes events to the parent."""

    def __init__(self, bpy: Any, send: Callable[..., None]) -> None:
        self._bpy = bpy
        self._send = send
        self._scene: Any = None
        self._number: int | None = None
        self._layers = 1
        self._said = 0.0
        self._told = 0.0
        self._cancelled = False

    def handle(self, op: str, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request: ``load``, ``set``, ``frame`` or ``develop``."""
        began, started = time.monotonic(), time.time()
        answer = getattr(self, f"_{op}")(request)
        return {"started_at": started, "seconds": time.monotonic() - began, **answer}

    def _load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open, look, set up. What is wrong with the job's own wishes is told beside the report."""
        self._scene = None
        opening.open_scene(self._bpy, Path(request["path"]))
        # opening a file drops the handlers that were there
        self._bpy.app.handlers.render_stats.append(self._on_stats)
        self._bpy.app.handlers.render_cancel.append(self._on_cancel)
        began = time.monotonic()
        report = findings.inspect(self._bpy, request["root"], request["wish"].get("every_frame"))
        inspected = time.monotonic() - began
        answer: dict[str, Any] = {"report": report, "inspect_s": inspected, "facts": None, "fault": None}
        try:
            self._scene, answer["facts"] = setup.configure(self._bpy, request["wish"])
            self._layers = len(answer["facts"]["view_layers"])
            channels = len(answer["facts"]["channels"])
            # what the job asks for, not the file
            report["estimated_memory"] = findings.memory(self._bpy.data, self._scene, channels)
        except Fault as fault:
            answer["fault"] = {"kind": fault.kind, "message": str(fault)}
        return answer

    def _set(self, request: dict[str, Any]) -> dict[str, Any]:
        setup.set_part(self._ready(), request["part"])
        return {}

    def _frame(self, request: dict[str, Any]) -> dict[str, Any]:
        scene = self._ready()
        self._number, self._cancelled = request["number"], False
        self._said = self._told = 0.0
        try:
            files = pictures.render(
                self._bpy, scene, request["number"], request["outputs"], Path(request["folder"])
            )
        finally:
            self._number = None
        if self._cancelled:
            raise Fault(
                f"frame {request['number']}: the render was cancelled inside Blender (out of memory, or a "
                "device error; the log says more)"
            )
        return {"number": request["number"], "files": files}

    def _develop(self, request: dict[str, Any]) -> dict[str, Any]:
        files = pictures.develop(
            self._bpy,
            self._ready(),
            Path(request["source"]),
            request["number"],
            request["outputs"],
            Path(request["folder"]),
        )
        return {"number": request["number"], "files": files}

    def _ready(self) -> Any:
        if self._scene is None:
            raise Fault("nothing is loaded")
        return self._scene

    def _on_stats(self, stats: Any, *_: Any) -> None:
        found = _SAMPLES.search(stats) if self._number is not None and isinstance(stats, str) else None
        if found is None:
            return
        now = time.monotonic()
        done, total = (int(group) for group in found.groups() if group is not None)
        fraction = min(1.0, done / max(1, total))
        # Cycles reports seldom once it knows its pace: no step of a thousandth is left out
        if done and (now - self._said >= _EVENT_INTERVAL_S or fraction - self._told >= 0.001):
            self._said, self._told = now, fraction
            self._send("progress", number=self._number, fraction=fraction, text=stats[:200])

    def _on_cancel(self, *_: Any) -> None:
        self._cancelled = True
