"""Neighbours that the agent itself runs: their commands inside their placement, started again when they end.

A server gets the environment of the plan (an index in CUDA_VISIBLE_DEVICES where a UUID would crash it),
its CPUs and memory nodes, set by ``gpu_pinning``'s launcher before exec. Decode and prefill are services of
their own. They end with the agent on its orderly end; when the agent is killed they serve on, and the next
agent takes them over.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from gpu_pinning import NeighbourPlan, NeighbourWish, procfs
from gpu_pinning import launch as launcher
from workers.placement import Seating

log = structlog.get_logger(__name__)
_BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_SETTLED_S = 120.0
_STOP_S = 30.0
_OUTPUT_MAX = 20 * 2**20


@dataclass
class _Service:
    name: str
    command: tuple[str, ...]
    plan: NeighbourPlan
    folder: Path
    all_nodes: tuple[int, ...]
    process: subprocess.Popen[bytes] | None = None
    pid: int = 0
    born: int = 0
    started_at: float = 0.0
    restart_at: float = 0.0
    failures: int = 0

    @property
    def mark(self) -> Path:
        return self.folder / f"{self.name}.pid"

    def alive(self) -> bool:
        """Whether the process that we started or took over still runs."""
        if self.process is not None:
            return self.process.poll() is None
        seen = procfs.process(self.pid) if self.pid else None
        return seen is not None and seen.started == self.born and seen.state not in "ZX"


class NeighbourServices:
    """The services of one node. All methods but :meth:`alive_of`'s answer belong to the main thread."""

    def __init__(self, seating: Seating, folder: Path) -> None:
        self._folder = folder
        self._services: dict[str, _Service] = {}
        self.reseat(seating)

    def reseat(self, seating: Seating) -> None:
        """Run the services of this plan: those that changed or are gone are ended, new ones start."""
        planned = {neighbour.name: neighbour for neighbour in seating.plan.neighbours}
        nodes = tuple(seating.machine.allowed_nodes)
        wanted: dict[str, _Service] = {}
        for wish in seating.config.wishes.neighbours:
            if not wish.command:
                continue
            if wish.name not in planned:
                log.error("a neighbour is not started: the plan has no place for it", neighbour=wish.name)
                continue
            self._folder.mkdir(parents=True, exist_ok=True)
            wanted[wish.name] = _service(wish, planned[wish.name], self._folder, nodes)
        for name, service in list(self._services.items()):
            new = wanted.get(name)
            if new is None or (new.command, new.plan) != (service.command, service.plan):
                self._end([service], _STOP_S)
                del self._services[name]
        for name, service in wanted.items():
            if name not in self._services:
                _take_over(service)
                self._services[name] = service

    def pids(self) -> list[int]:
        """Process ids of our own children among them."""
        return [service.process.pid for service in self._services.values() if service.process is not None]

    def alive_of(self, name: str) -> Callable[[], bool] | None:
        """A question whether the service runs; ``None`` for a neighbour that somebody else runs."""
        service = self._services.get(name)
        return service.alive if service is not None else None

    def turn(self, now: float) -> None:
        """Start what does not run and is due."""
        for service in self._services.values():
            if service.alive():
                continue
            if service.pid:
                self._ended(service, now)
            if now >= service.restart_at:
                _start(service, now)

    def stop(self, wait_s: float = _STOP_S) -> None:
        """End all of them: SIGTERM to each group, SIGKILL to what is left after ``wait_s``."""
        self._end(list(self._services.values()), wait_s)

    @staticmethod
    def _end(services: list[_Service], wait_s: float) -> None:
        living = [service for service in services if service.alive()]
        for service in living:
            with suppress(ProcessLookupError):
                os.killpg(service.pid, signal.SIGTERM)
        deadline = time.monotonic() + wait_s
        while any(service.alive() for service in living) and time.monotonic() < deadline:
            time.sleep(0.05)
        for service in living:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(service.pid, signal.SIGKILL)
            if service.process is not None:
                service.process.wait()
            service.mark.unlink(missing_ok=True)

    def _ended(self, service: _Service, now: float) -> None:
        code = service.process.poll() if service.process is not None else None
        lived_s = now - service.started_at
        service.failures = 0 if lived_s > _SETTLED_S else service.failures + 1
        service.restart_at = now + _BACKOFF_S[min(service.failures, len(_BACKOFF_S) - 1)]
        # what it left behind would hold its GPU and its port
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(service.pid, signal.SIGKILL)
        log.warning(
            "a neighbour's server ended", neighbour=service.name, code=code, lived_s=round(lived_s, 1)
        )
        service.process, service.pid = None, 0
        service.mark.unlink(missing_ok=True)


def launch_spec(
    command: tuple[str, ...], plan: NeighbourPlan, all_nodes: tuple[int, ...]
) -> dict[str, object]:
    """What ``gpu_pinning``'s launcher does to the server before exec: CPUs, and memory nodes where fewer."""
    nodes = list(plan.nodes) if set(all_nodes) - set(plan.nodes) else []
    return {
        "argv": list(command),
        "cpus": list(plan.cpus),
        "nodes": nodes,
        "lenient": ["affinity", "memory policy"],
    }


def service_environment(plan: NeighbourPlan, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server: ours without the farm's own secrets, and the plan's."""
    kept = {name: value for name, value in base.items() if not name.startswith(("FARM_", "STILLFRAME_"))}
    return kept | plan.environment


def _service(wish: NeighbourWish, plan: NeighbourPlan, folder: Path, nodes: tuple[int, ...]) -> _Service:
    return _Service(wish.name, wish.command, plan, folder, nodes)


def _start(service: _Service, now: float) -> None:
    spec = service.folder / f"{service.name}.launch.json"
    spec.write_text(json.dumps(launch_spec(service.command, service.plan, service.all_nodes)))
    output = service.folder / f"{service.name}.log"
    if output.exists() and output.stat().st_size > _OUTPUT_MAX:
        output.replace(output.with_suffix(".log.1"))
    with output.open("ab") as out:
        service.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(launcher.__file__)), str(spec)],
            env=service_environment(service.plan, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    service.pid, service.started_at = service.process.pid, now
    seen = procfs.process(service.pid)
    service.born = seen.started if seen else 0
    service.mark.write_text(f"{service.pid} {service.born}\n")
    log.info("started a neighbour's server", neighbour=service.name, pid=service.pid)


def _take_over(service: _Service) -> None:
    try:
        pid, born = map(int, service.mark.read_text().split())
    except (OSError, ValueError):
        return
    service.pid, service.born, service.started_at = pid, born, time.monotonic()
    if service.alive():
        log.info("took over a neighbour's server", neighbour=service.name, pid=pid)
    else:
        service.pid = 0
        service.mark.unlink(missing_ok=True)
