"""Where decode steps come from: the built-in load in a process of its own, or a real server by URL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gpu_pinning import procfs
from gpu_pinning.errors import PinningError
from gpu_pinning.guard.fetch import PageTrouble, fetch
from gpu_pinning.guard.probe import Gap, ProbeOptions, StreamProbe
from gpu_pinning.guard.watch import Probe, served_model
from gpu_pinning.stillness.decode_load import StampProbe
from gpu_pinning.stillness.launching import (
    START_S,
    await_stamps,
    end,
    environment,
    on_gpu,
    spread,
    tail,
    waited_s,
)
from gpu_pinning.stillness.stamps import StampReader
from gpu_pinning.stillness.statistics import Steps


class Source(Protocol):
    """Where decode steps come from."""

    def durations(self, begin: float, end: float) -> Steps:
        """Durations in seconds of the steps that ended between two moments (monotonic seconds)."""

    def pause(self, standing: bool) -> bool:
        """Make the load stand still, or go on; False where it is not ours to stop."""

    def probe(self) -> Probe:
        """A fresh probe on its steps, as the guard wants one."""

    def waited_s(self) -> float | None:
        """Seconds so far that it was ready to run and had no core; None where nobody can say."""

    def pids(self) -> list[int]:
        """Its processes, where they are ours."""

    def close(self) -> None:
        """End it."""


class DecodeProcess:
    """The built-in decode load in a process of its own on ``cpus``. Raises PinningError where it dies.

    ``gpu`` is the UUID of its GPU (None: the first that CUDA sees). ``command`` replaces it by another
    program that takes a stamp file as its last argument. With ``wait=False`` it is only started:
    :meth:`ready` waits until it steps.
    """

    def __init__(
        self,
        form: str,
        cpus: Sequence[int],
        folder: Path,
        command: Sequence[str] | None = None,
        gpu: str | None = None,
        wait: bool = True,
    ) -> None:
        self.form = form
        stamps = folder / f"decode-{form}.stamps"
        argv = command or [sys.executable, "-m", "gpu_pinning.stillness.decode_load", form]
        self._log = folder / f"decode-{form}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*argv, str(stamps)],
                env=environment(1, on_gpu(gpu)),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.stamps = stamps
        self._cpus = cpus
        self._reader: StampReader | None = None
        spread(self.process.pid, cpus)
        if wait:
            self.ready()

    def ready(self) -> None:
        """Wait until it steps. Raises :class:`PinningError`."""
        if self._reader is None:
            what = f"decode ({self.form})"
            self._reader = await_stamps(self.process, [self.stamps], self._log, what)[0]
            # libraries have started their threads by now
            spread(self.process.pid, self._cpus)

    @property
    def reader(self) -> StampReader:
        """Its stamps, once it is ready."""
        assert self._reader is not None, "ready() comes first"
        return self._reader

    def facts(self) -> dict[str, Any]:
        """What it found of itself before its first step: the share of a step that its launch takes."""
        told = Path(f"{self.stamps}.facts")
        found: dict[str, Any] = json.loads(told.read_text()) if told.exists() else {}
        return found

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def durations(self, begin: float, end: float) -> Steps:
        """See :class:`Source`."""
        if self.process.poll() is not None:
            raise PinningError(f"the decode load ended: {tail(self._log)}")
        return np.diff(np.frombuffer(self.reader.between(begin, end), dtype=np.float64))

    def pause(self, standing: bool) -> bool:
        """See :class:`Source`."""
        os.killpg(self.process.pid, signal.SIGSTOP if standing else signal.SIGCONT)
        return True

    def probe(self) -> Probe:
        """See :class:`Source`."""
        return StampProbe(self.stamps)

    def waited_s(self) -> float | None:
        """See :class:`Source`."""
        return waited_s(self.process.pid)

    def pids(self) -> list[int]:
        """See :class:`Source`."""
        return procfs.family(self.process.pid)

    def close(self) -> None:
        """See :class:`Source`."""
        end(self.process)


def _nameless(url: str) -> str:
    """Why no model of a server can be asked for, and what to do."""
    try:
        fetch(url, "/v1/models", timeout_s=5.0)
    except PageTrouble as trouble:
        if trouble.kind == "refused":
            return f"url = {url}: {trouble}; start the server first, or give the address where it serves"
        return f"url = {url}: {trouble}; name the model that it serves with --model"
    return f"url = {url}: the server lists no model; name one with --model"


class DecodeServer:
    """A real server by URL, through the guard's own probe."""

    def __init__(self, url: str, model: str | None) -> None:
        name = model or served_model(url)
        if name is None:
            raise PinningError(_nameless(url))
        self._probe = StreamProbe(ProbeOptions(url, name, api_key=os.environ.get("FARM_NEIGHBOUR_KEY")))
        self._gaps: list[Gap] = []
        self._stop = threading.Event()
        self._probe.start()
        self._thread = threading.Thread(target=self._gather, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._gaps:
            if time.monotonic() > deadline:
                self.close()
                raise PinningError(f"no stream from {url}: {self._probe.error}")
            time.sleep(0.05)

    def _gather(self) -> None:
        while not self._stop.wait(0.02):
            self._gaps += self._probe.take()

    def durations(self, begin: float, end: float) -> Steps:
        """See :class:`Source`."""
        time.sleep(0.1)
        return np.array([gap.seconds for gap in list(self._gaps) if begin <= gap.at < end])

    def pause(self, standing: bool) -> bool:
        """Not ours to stop."""
        return False

    def probe(self) -> Probe:
        """See :class:`Source`: the one stream serves the bench and the guard."""
        return _Listener(self._gaps, self._probe)

    def waited_s(self) -> float | None:
        """Not ours to ask."""
        return None

    def pids(self) -> list[int]:
        """None is ours."""
        return []

    def close(self) -> None:
        """See :class:`Source`."""
        self._stop.set()
        self._probe.stop()


class _Listener:
    """A second reader of the gaps that another probe gathers."""

    def __init__(self, gaps: list[Gap], probe: StreamProbe) -> None:
        self._gaps, self._of = gaps, probe
        self._next = len(gaps)
        self.started_at = 0.0

    @property
    def error(self) -> str | None:
        """See :class:`gpu_pinning.guard.watch.Probe`."""
        return self._of.error

    @property
    def refused(self) -> bool:
        """See :class:`gpu_pinning.guard.watch.Probe`."""
        return self._of.refused

    @property
    def token_at(self) -> float | None:
        """See :class:`gpu_pinning.guard.watch.Probe`."""
        return self._of.token_at

    def start(self) -> None:
        """Count from here on."""
        self.started_at, self._next = time.monotonic(), len(self._gaps)

    def stop(self) -> None:
        """The stream goes on for the bench."""

    def take(self) -> list[Gap]:
        """Gaps since the last call."""
        new = self._gaps[self._next :]
        self._next += len(new)
        return new
