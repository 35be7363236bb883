"""Real fences around real processes; devices stand in for GPUs where the machine has none."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_pinning import topology
from gpu_pinning.fence import Fence
from gpu_pinning.machine import DeviceFenceMethod, DeviceNode, Topology
from gpu_pinning.placement import make_plan
from gpu_pinning.plan import SlotPlan
from gpu_pinning.wishes import Wishes


def until(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true answer of ``what``, or a failure."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := what():
            return answer
        time.sleep(0.005)
    raise AssertionError(f"not within {seconds} s")


@pytest.fixture(scope="session")
def machine() -> Topology:
    """The machine that the tests run on."""
    return topology.read()


@pytest.fixture(scope="session")
def fake_gpu_nodes() -> tuple[DeviceNode, ...]:
    """A device file that opens for us and that nobody misses."""
    for name in ("fuse", "hwrng", "kvm", "net/tun", "zero"):
        path = Path("/dev") / name
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
            number = path.stat().st_rdev
            return (DeviceNode(path=str(path), major=os.major(number), minor=os.minor(number), gpu="GPU-x"),)
    pytest.skip("no device file opens here")


class Started:
    """A slot that runs Python code behind a fence."""

    def __init__(self, fence: Fence, code: str) -> None:
        self.fence = fence
        env = {**os.environ, **fence.environment()}
        self.process = subprocess.Popen(
            fence.command([sys.executable, "-c", code]),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def line(self) -> Any:
        """The next line of its output, read as JSON."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            assert self.process.stderr is not None
            raise AssertionError(f"the slot ended: {self.process.stderr.read().decode()}")
        return json.loads(text)


class Workshop:
    """Makes slots and ends them all."""

    def __init__(self, machine: Topology, folder: Path) -> None:
        self.machine = machine
        self.folder = folder
        self.started: list[Started] = []
        self.fences: list[Fence] = []

    def slot(self, text: str = "", machine: Topology | None = None) -> SlotPlan:
        """The first slot of a plan with one CPU slot on one core."""
        wish = f'[[slots]]\nname = "t"\npools = ["render"]\ncores = 1\n{text}'
        plan = make_plan(machine or self.machine, Wishes.parse(wish))
        assert not plan.refusals, plan.refusals
        return plan.slots[0]

    def fence(self, text: str = "", machine: Topology | None = None) -> Fence:
        """An applied fence."""
        at = machine or self.machine
        fence = Fence.create(at, self.slot(text, at), self.folder)
        fence.apply()
        self.fences.append(fence)
        return fence

    def start(self, fence: Fence, code: str) -> Started:
        """Run code behind the fence, and wait until the launcher has reported."""
        started = Started(fence, code)
        self.started.append(started)
        fence.await_launch(started.process.pid)
        return started

    def close(self) -> None:
        """End everything."""
        for started in self.started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(started.process.pid, signal.SIGKILL)
        for fence in self.fences:
            if fence.group.folders:
                fence.group.kill()
        for started in self.started:
            started.process.wait()
            for stream in (started.process.stdout, started.process.stderr):
                if stream is not None:
                    stream.close()
        for fence in self.fences:
            fence.remove()


@pytest.fixture
def workshop(machine: Topology, tmp_path: Path) -> Iterator[Workshop]:
    """Slots for one test."""
    shop = Workshop(machine, tmp_path)
    yield shop
    shop.close()


def without_cgroups(machine: Topology, devices: DeviceFenceMethod = "none") -> Topology:
    """The same machine for somebody who has no right to any cgroup."""
    return machine.model_copy(update={"cgroups": (), "device_fence": devices})


def needs(machine: Topology, *controllers: str) -> None:
    """Skip where a controller cannot be used."""
    for name in controllers:
        right = machine.right(name)
        if not right.granted:
            pytest.skip(f"no right to {name}: {right.reason}")
