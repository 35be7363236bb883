"""A breach made on purpose: farm work where it harms, the guard that stops it, and how fast.

The decode load runs and the guard learns what is normal; then farm work begins on the same device (frozen at
once), or on decode's own cores (the ladder is climbed to a pause). The guard's own loop decides, on the
load's steps, and its hand is a freeze. Measured from the moment the work begins to harm: when the work stands
still, and when decode is back within 5 % of its baseline. Afterwards
decode ends, and the work, which was frozen in between, has to finish with the same result as a run that
nobody stopped.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pinning import actuator
from gpu_pinning.errors import FenceError, PinningError
from gpu_pinning.guard.decide import Policy, Rung
from gpu_pinning.guard.loop import FarmLoad, GuardEvent, GuardLoop, Hold
from gpu_pinning.guard.watch import Subject, Watch
from gpu_pinning.stillness.launching import environment
from gpu_pinning.stillness.sources import DecodeProcess
from gpu_pinning.stillness.statistics import Steps

FROZEN_WITHIN_S = 0.5
PAUSED_WITHIN_S = 5.0
"""Where the work shares no GPU with the neighbour."""
BACK_WITHIN_S = 1.0
BACK_TO = 1.05
"""Decode is back when a tenth of a second's median step is at most this much longer than its baseline."""
_LOOK_S = 0.1


class _Hands:
    """Freezes one process and what is below it, as the agent does with a slot."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.decided_at: list[float] = []
        self.frozen_at: list[float] = []
        self.thawed_at: list[float] = []
        self._standing = False

    def hold(self, hold: Hold) -> None:
        """See :class:`gpu_pinning.guard.loop.Actuator`."""
        if self.pid is None:
            return
        # the work may have ended in this moment
        with contextlib.suppress(FenceError):
            wanted = bool(hold.frozen) or hold.rung >= Rung.PAUSE
            if wanted and not self._standing:
                self._standing = True
                self.decided_at.append(time.monotonic())
                actuator.stop(None, self.pid)
                self.frozen_at.append(time.monotonic())
            elif not wanted and self._standing:
                self._standing = False
                actuator.resume(None, self.pid)
                self.thawed_at.append(time.monotonic())


def try_breach(
    decode: DecodeProcess,
    folder: Path,
    *,
    gpu: str | None,
    work: Callable[[Path, int, Path | None], list[str]],
    units: int,
    watch_s: float = 12.0,
    learn_s: float = 8.0,
    budget_ms: float | None = None,
    policy: Policy | None = None,
    more: dict[str, str] | None = None,
    keep: bool = False,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Breach, freeze, recover, finish; figures and whether each bound was kept.

    ``work`` gives the command of the farm work for a stamp file, a number of units and a gate; it prints its
    result. With a gate it loads first, writes ``gate.ready``, and works once ``gate`` is there, so that what
    is measured is work and not loading.
    ``gpu`` is what both share: a UUID, or any word without a GPU; ``None``: they share cores alone. ``more``
    is set in the work's environment. ``decode`` stands still during the reference run, and is closed at the
    end; with ``keep`` it stands still there and then goes on. Raises :class:`PinningError`.
    """
    say("reference run of the farm work alone")
    decode.pause(True)
    try:
        reference = _run_alone(work(folder / "reference.stamps", units, None), more)
    finally:
        decode.pause(False)
    hands = _Hands()
    events: list[GuardEvent] = []
    working = threading.Event()
    subject = Subject("decode", url="stamps:", gpus=(gpu,) if gpu else (), budget_ms=budget_ms)
    watch = Watch(subject, None, probe=decode.probe)

    def load() -> FarmLoad:
        return FarmLoad(working.is_set(), frozenset({gpu} if gpu and working.is_set() else ()))

    loop = GuardLoop([watch], hands, load, events.append, policy=policy)
    stop = threading.Event()
    thread = threading.Thread(target=loop.run, args=(stop,), daemon=True)
    farm: subprocess.Popen[str] | None = None
    away = False
    stamps, gate = folder / "breach.stamps", folder / "gate"
    try:
        say("the farm work loads on the neighbour's device, and waits")
        farm = _start(work(stamps, units, gate), more)
        _await_ready(gate, farm)
        hands.pid = farm.pid
        time.sleep(1.0)
        began = time.monotonic()
        thread.start()
        _learn(watch, learn_s)
        begin = time.monotonic()
        time.sleep(2.0)
        baseline = decode.durations(begin, time.monotonic())
        working.set()
        first = time.monotonic()
        gate.touch()
        say("the farm work begins")
        time.sleep(watch_s)
        within_s = FROZEN_WITHIN_S if gpu else PAUSED_WITHIN_S
        watched = _figures(decode, hands, first, baseline, within_s, 0.5 if gpu else 0.2)
        cpu = loop.cpu_s / (time.monotonic() - began)
        say("decode ends; the work may go on")
        decode.pause(True)
        away = True
        working.clear()
        stop.set()
        thread.join(10)
        hands.hold(Hold())
        out, _ = farm.communicate(timeout=180)
    except subprocess.TimeoutExpired as error:
        raise PinningError("the farm work did not end within 180 s after it was let go") from error
    finally:
        stop.set()
        if farm is not None and farm.poll() is None:
            with contextlib.suppress(FenceError):
                actuator.resume(None, farm.pid)
            with contextlib.suppress(FenceError):
                actuator.kill_family(farm.pid)
            farm.wait(10)
        if not keep:
            decode.close()
        elif away:
            decode.pause(False)
    return watched | {
        "guard_cpu_share": round(cpu, 5),
        "reference": reference,
        "result": out.strip(),
        "same_result": out.strip() == reference,
        "freezes": len(hands.frozen_at),
        "events": [_shown(event, first) for event in events],
    }


def _learn(watch: Watch, seconds: float) -> None:
    deadline = time.monotonic() + seconds + 60
    while watch.budgets.at(None) is None:
        if time.monotonic() > deadline:
            raise PinningError("the guard has not learnt a baseline: decode makes too few steps")
        time.sleep(0.05)
    time.sleep(seconds)


def _await_ready(gate: Path, farm: subprocess.Popen[str]) -> None:
    ready = Path(f"{gate}.ready")
    deadline = time.monotonic() + 120
    while not ready.exists():
        if farm.poll() is not None:
            raise PinningError(f"the farm work ended with {farm.returncode} before it began")
        if time.monotonic() > deadline:
            raise PinningError("the farm work was not ready within 120 s")
        time.sleep(0.01)


def _figures(
    decode: DecodeProcess, hands: _Hands, first: float, baseline: Steps, within_s: float, share: float
) -> dict[str, Any]:
    end = time.monotonic()
    stamps = np.frombuffer(decode.reader.between(first - 5.0, end), dtype=np.float64)
    durations, at = np.diff(stamps), stamps[1:]
    normal = float(np.median(baseline))
    budget = float(np.quantile(baseline, 0.99)) * 1.1
    breach = breach_begins(at, durations, budget, first, share, hands.frozen_at)
    frozen = next((moment for moment in hands.frozen_at if breach is not None and moment >= breach), None)
    decided = max((moment for moment in hands.decided_at if frozen and moment <= frozen), default=None)
    back = None
    if frozen is not None:
        for begin in np.arange(frozen, end - _LOOK_S, 0.01):
            seen = durations[(at >= begin) & (at < begin + _LOOK_S)]
            if len(seen) and float(np.median(seen)) <= BACK_TO * normal:
                back = float(begin)
                break
    frozen_s = None if frozen is None or breach is None else frozen - breach
    back_s = None if back is None or breach is None else back - breach
    harmed = durations[(at >= (breach or end)) & (at < (frozen or end))]
    return {
        "baseline_p50_ms": normal * 1000,
        "harmed_p50_ms": float(np.median(harmed)) * 1000 if len(harmed) else None,
        "breached": breach is not None,
        "frozen_after_s": frozen_s,
        "back_after_s": back_s,
        "decided_after_s": None if decided is None or breach is None else decided - breach,
        "freezing_took_s": None if decided is None or frozen is None else frozen - decided,
        "frozen_in_time": frozen_s is not None and frozen_s <= within_s,
        "back_in_time": back_s is not None and back_s <= BACK_WITHIN_S,
    }


def breach_begins(
    at: Steps, durations: Steps, budget: float, first: float, share: float, stopped: Sequence[float] = ()
) -> float | None:
    """When the harm began, after ``first``: the beginning of a step over budget.

    It is the first one after which this share of a tenth of a second's steps are over, or, where the work was
    ``stopped`` before it came to that, the first one before it was.
    """
    end = min((moment for moment in stopped if moment >= first), default=float("inf"))
    slow = np.flatnonzero((durations > budget) & (at >= first) & (at - durations <= end))
    begins = [max(first, float(at[index] - durations[index])) for index in slow]
    for index, begin in zip(slow, begins, strict=True):
        soon = (at >= at[index]) & (at < at[index] + _LOOK_S)
        if float((durations[soon] > budget).mean()) >= share:
            return begin
    return begins[0] if begins and stopped else None


def _run_alone(command: list[str], more: dict[str, str] | None) -> str:
    try:
        done = subprocess.run(command, env=_environment(more), capture_output=True, text=True, timeout=180)
    except subprocess.TimeoutExpired as error:
        raise PinningError("the farm work alone did not end within 180 s") from error
    if done.returncode != 0:
        raise PinningError(f"the farm work fails alone: {done.stderr[-1500:]}")
    return done.stdout.strip()


def _start(command: list[str], more: dict[str, str] | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=_environment(more), stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def _environment(more: dict[str, str] | None) -> dict[str, str]:
    return environment(max(1, len(os.sched_getaffinity(0)) // 4), more)


def _shown(event: GuardEvent, first: float) -> dict[str, Any]:
    return {
        "kind": event.kind,
        "rung": event.rung.name.lower(),
        "frozen": event.frozen,
        "reason": event.reason,
        "seconds_after_work_began": round(event.at - first, 3),
    }


def denoise_work(stamps: Path, units: int, gate: Path | None) -> list[str]:
    """Denoise steps in torch, as a command that prints a hash of what came out."""
    command = [sys.executable, "-m", "gpu_pinning.stillness.farm_load", "denoise", str(stamps), str(units)]
    return [*command, str(gate)] if gate is not None else command


def loose_work(pool: str, cpus: Sequence[int]) -> Callable[[Path, int, Path | None], list[str]]:
    """A pool's work on these CPUs, without a fence, as a command; how many of it is said by ``more``."""
    wanted = ",".join(map(str, cpus))
    script = (
        "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(',')));"
        "os.execv(sys.executable, [sys.executable, '-m', *sys.argv[2:]])"
    )
    module = "gpu_pinning.stillness.farm_load"

    def work(stamps: Path, units: int, gate: Path | None) -> list[str]:
        command = [sys.executable, "-c", script, wanted, module, pool, str(stamps), str(units)]
        return [*command, str(gate)] if gate is not None else command

    return work
