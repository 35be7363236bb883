"""The guard's hands: stop, resume and end a slot, mildest means first, and say how it was done.

A cgroup stops everything at once, also what was started meanwhile. SIGSTOP has to be sent again until no new
process appears, and a program may notice it (SIGCONT is seen by handlers); it is the fallback.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Literal

from gpu_pinning import procfs
from gpu_pinning.errors import FenceError
from gpu_pinning.group import SlotGroup
from gpu_pinning.machine import Part


class Stop(Part):
    """How a slot was stopped or resumed."""

    how: Literal["cgroup", "SIGSTOP", "SIGCONT"]
    seconds: float
    pids: tuple[int, ...]


def stop(group: SlotGroup | None, pid: int | None = None, seconds: float = 5.0) -> Stop:
    """Stop every process of a slot. Raises FenceError where one still runs after ``seconds``."""
    if group is not None and "freeze" in group.folders:
        return Stop(how="cgroup", seconds=group.freeze(seconds), pids=tuple(group.pids()))
    return _signal_family(_members(group, pid), signal.SIGSTOP, seconds)


def resume(group: SlotGroup | None, pid: int | None = None, seconds: float = 5.0) -> Stop:
    """Let a slot run again. Raises FenceError."""
    if group is not None and "freeze" in group.folders:
        return Stop(how="cgroup", seconds=group.thaw(seconds), pids=tuple(group.pids()))
    return _signal_family(_members(group, pid), signal.SIGCONT, seconds)


def _members(group: SlotGroup | None, pid: int | None) -> tuple[SlotGroup | None, int]:
    if pid is None:
        raise FenceError("without a freezer cgroup the slot's pid is needed")
    return group, pid


def _family(who: tuple[SlotGroup | None, int]) -> list[int]:
    group, pid = who
    return sorted({*procfs.family(pid), *(group.pids() if group else [])})


def _signal_family(who: tuple[SlotGroup | None, int], number: signal.Signals, seconds: float) -> Stop:
    """Send until every member is in the wanted state and no member is new."""
    began = time.monotonic()
    halt = number == signal.SIGSTOP
    while True:
        members = _family(who)
        moving = []
        for pid in members:
            state = procfs.process(pid)
            if state is None or state.state in "ZX" or (state.state == "T") == halt:
                continue
            moving.append(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if not moving and members == _family(who):
            return Stop(
                how="SIGSTOP" if halt else "SIGCONT", seconds=time.monotonic() - began, pids=tuple(members)
            )
        if time.monotonic() - began > seconds:
            raise FenceError(f"processes {moving} did not obey {number.name} within {seconds} s")
        time.sleep(0.001)


def kill_family(pid: int, seconds: float = 10.0) -> float:
    """SIGKILL to a process, its descendants and its session, until none is left. Raises FenceError."""
    began = time.monotonic()
    known: dict[int, int] = {}
    while True:
        # Whoever was seen once is followed, also after its parent is gone; the start time keeps a pid that
        # was given to somebody else out of it.
        for member in procfs.family(pid):
            state = procfs.process(member)
            if state is not None:
                known.setdefault(member, state.started)
        left = [
            member
            for member, started in known.items()
            if (now := procfs.process(member)) is not None
            and now.started == started
            and now.state not in "ZX"
        ]
        if not left:
            return time.monotonic() - began
        for member in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        if time.monotonic() - began > seconds:
            raise FenceError(f"processes {left} outlived SIGKILL for {seconds} s")
        time.sleep(0.002)
