"""One run of the bench: warm up, interleave the arms, compare, judge, write the report.

Arms come in quartets A B B A, round after round: a placebo (idle against idle), the farm in its fence, and
with ``hurt`` the farm without one. Warm-up repeats the placebo until it agrees within 1 %; if it never does,
the run is inconclusive. What the farm gets done beside decode is compared with what it gets done in the same
fence while decode stands still.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pinning import topology
from gpu_pinning.errors import PinningError, TopologyError
from gpu_pinning.machine import Topology
from gpu_pinning.stillness import report as reports
from gpu_pinning.stillness.arms import (
    SETTLE_S,
    Arm,
    Block,
    DecodeProcess,
    DecodeServer,
    FarmWorker,
    Source,
    run_block,
)
from gpu_pinning.stillness.decode_load import FORMS, describe
from gpu_pinning.stillness.seating import Seats, everywhere, loads_in_words, seat
from gpu_pinning.stillness.statistics import (
    TOLERANCE,
    ArmResult,
    Judgement,
    Outcome,
    Quartet,
    compare,
    judge,
)
from gpu_pinning.wishes import Wishes

EXIT_CODES = {Outcome.STILL: 0, Outcome.DISTURBED: 4, Outcome.VOID: 5, Outcome.INCONCLUSIVE: 6}
WARM_UP_MOST_S = 300.0
_SHORTEST_S = 20.0
_LONGEST_BLOCK_S = 5.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is to be. ``form`` ``auto`` takes ``graph`` with CUDA and ``cpu`` without."""

    seconds: float = 300.0
    form: str = "auto"
    url: str | None = None
    model: str | None = None
    hurt: bool = False
    farm_toml: Path | None = None
    out: Path = Path("stillness")
    quartets: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seconds < _SHORTEST_S:
            raise ValueError(f"seconds = {self.seconds:g}: a run takes {_SHORTEST_S:g} s or more")
        if self.form not in (*FORMS, "auto"):
            raise ValueError(f"form = {self.form!r}: choose one of auto, {', '.join(FORMS)}")
        if self.quartets < 2:
            raise ValueError(f"quartets = {self.quartets}: at least 2 are needed")


@dataclass
class Record:
    """What was measured, arm by arm, for judgement and plots."""

    quartets: dict[str, list[Quartet]] = field(default_factory=dict)
    blocks: dict[str, list[tuple[str, Block]]] = field(default_factory=dict)
    short: list[str] = field(default_factory=list)

    def add(self, name: str, blocks: list[tuple[str, Block]]) -> None:
        """Take in a quartet of blocks ``idle`` or ``arm``."""
        self.blocks.setdefault(name, []).extend(blocks)
        idle = np.concatenate([block.durations for kind, block in blocks if kind == "idle"])
        arm = np.concatenate([block.durations for kind, block in blocks if kind == "arm"])
        try:
            self.quartets.setdefault(name, []).append(Quartet(idle, arm))
        except ValueError as error:
            self.short.append(f"{name}: {error}")


def cuda_is_there() -> bool:
    """Whether the built-in load can decode on a GPU; torch is imported for it."""
    try:
        import torch

        return bool(torch.cuda.is_available())
    except ImportError:
        return False


def run(options: Options, say: Say = print) -> tuple[dict[str, Any], int]:
    """Run, write ``stillness.json`` and ``stillness.html`` into ``options.out``; the report and exit code.

    Raises :class:`PinningError` where no decode load or no farm work can be started at all.
    """
    form = options.form
    if form == "auto":
        form = "graph" if options.url is None and cuda_is_there() else "cpu"
    machine = _machine()
    wishes = Wishes.load(options.farm_toml) if options.farm_toml else None
    seats = seat(machine, wishes, decode_gpu=form != "cpu" or options.url is not None)
    began = time.time()
    record, warm = Record(), None
    throughput: dict[str, Any] = {}
    steal: dict[str, float | None] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stillness-")))
        source = _source(options, form, seats, folder)
        stack.callback(source.close)
        arms = _arms(options, seats, machine, folder, stack, say)
        block_s = _block_s(options, len(arms))
        say(f"warming up; then {options.quartets} rounds of {len(arms)} arms, blocks of {block_s:.1f} s")
        warm = _warm_up(source, seats, block_s, min(WARM_UP_MOST_S, 0.25 * options.seconds), say)
        throughput["alone"] = [_alone(source, arms["farm"], block_s, seats)]
        for number in range(options.quartets):
            for name, arm in arms.items():
                record.add(name, _quartet(source, arm, block_s, seats))
            say(f"round {number + 1} of {options.quartets} is done")
        throughput["alone"].append(_alone(source, arms["farm"], block_s, seats))
        throughput["beside"] = _beside(record, arms["farm"])
        steal = {name: _mean_steal(blocks) for name, blocks in record.blocks.items()}
        fences = sorted({worker.fenced_by for worker in arms["farm"].workers})
    results, judgement = conclude(record, warm, options)
    found = {
        "version": 1,
        "verdict": judgement.outcome.value,
        "reasons": list(judgement.reasons),
        "began_at": began,
        "seconds": round(time.time() - began, 1),
        "host": _host(machine),
        "decode": {
            "form": "server" if options.url else form,
            "model": options.url or describe(form),
            "cpus": list(seats.decode),
            "gpu": machine.gpus[0].name if machine and machine.gpus and form != "cpu" else None,
        },
        "farm": {
            "loads": loads_in_words(seats.works),
            "cpus": list(seats.farm),
            "fence": fences,
            "class": seats.guarantee,
            "class_reason": seats.reason,
            "notes": list(seats.notes),
        },
        "warm_up": warm,
        "arms": {name: arm_to_json(result) for name, result in results.items()},
        "too_few_steps": record.short,
        "throughput": _throughput(throughput),
        "steal": steal,
        "hurt": options.hurt,
        "plots": reports.plot_data(record.blocks),
    }
    reports.write(found, options.out)
    say(reports.table(found))
    return found, EXIT_CODES[judgement.outcome]


def conclude(
    record: Record, warm: dict[str, Any] | None, options: Options
) -> tuple[dict[str, ArmResult], Judgement]:
    """Results by arm and the verdict."""
    results = {
        name: compare(name, quartets, seed=options.seed)
        for name, quartets in record.quartets.items()
        if quartets
    }
    missing = [
        name for name in ("placebo", "farm", *(["control"] if options.hurt else [])) if name not in results
    ]
    if missing:
        why = "; ".join(record.short[:3]) or "nothing was measured"
        return results, Judgement(Outcome.INCONCLUSIVE, (f"too few steps for {', '.join(missing)}: {why}",))
    if warm is not None and not warm["agreed"]:
        words = f"warm-up ended after {warm['seconds']:.0f} s without a placebo within {TOLERANCE:.0%}"
        return results, Judgement(Outcome.INCONCLUSIVE, (f"{words}: {warm['ratios'][-3:]}",))
    return results, judge(results["farm"], results["placebo"], results.get("control"))


def arm_to_json(result: ArmResult) -> dict[str, Any]:
    """An arm's ratios as JSON."""

    def ratio(value: Any) -> dict[str, float]:
        return {"value": value.value, "lower": value.lower, "upper": value.upper}

    return {
        "p50": ratio(result.p50),
        "p99": ratio(result.p99),
        "p999": result.p999,
        "steps": result.steps,
        "quartets": result.quartets,
    }


def _machine() -> Topology | None:
    try:
        return topology.read()
    except TopologyError:
        return None


def _source(options: Options, form: str, seats: Seats, folder: Path) -> Source:
    if options.url is not None:
        return DecodeServer(options.url, options.model)
    return DecodeProcess(form, seats.decode, folder)


def _arms(
    options: Options, seats: Seats, machine: Topology | None, folder: Path, stack: ExitStack, say: Say
) -> dict[str, Arm]:
    def workers(kind: str, fenced: bool) -> list[FarmWorker]:
        started = []
        for number, work in enumerate(seats.works if fenced else everywhere(seats)):
            worker = FarmWorker(work, f"{kind}-{number}", machine, folder)
            worker.run(False)
            stack.callback(worker.close)
            started.append(worker)
        return started

    say("starting farm workers")
    arms = {"placebo": Arm("placebo"), "farm": Arm("farm", workers("farm", True))}
    if options.hurt:
        arms["control"] = Arm("control", workers("control", False), everywhere=seats.everyone)
    return arms


def _block_s(options: Options, arms: int) -> float:
    # a fifth for start and end, a quarter for warm-up at most
    left = 0.55 * options.seconds / (options.quartets * arms * 4) - SETTLE_S
    return min(_LONGEST_BLOCK_S, max(0.5, left))


def _quartet(source: Source, arm: Arm, block_s: float, seats: Seats) -> list[tuple[str, Block]]:
    if arm.everywhere:
        source.spread(arm.everywhere)
    blocks = []
    try:
        for kind in ("idle", "arm", "arm", "idle"):
            busy = arm if kind == "arm" and arm.workers else None
            blocks.append((kind, run_block(source, busy, block_s, seats.decode)))
    finally:
        if arm.everywhere:
            source.spread(seats.decode)
    return blocks


def _warm_up(source: Source, seats: Seats, block_s: float, most_s: float, say: Say) -> dict[str, Any]:
    """Idle quartets until the medians of two agree within the tolerance."""
    began = time.monotonic()
    ratios: list[float] = []
    while True:
        blocks = [run_block(source, None, block_s, seats.decode) for _ in range(4)]
        sides = (np.concatenate([blocks[0].durations, blocks[3].durations]),
                 np.concatenate([blocks[1].durations, blocks[2].durations]))  # fmt: skip
        if min(map(len, sides)):
            ratios.append(round(float(np.median(sides[1]) / np.median(sides[0])), 5))
        agreed = bool(ratios) and abs(ratios[-1] - 1) <= TOLERANCE
        if agreed or time.monotonic() - began >= most_s:
            seconds = time.monotonic() - began
            word = "agreed" if agreed else "did not agree"
            say(f"warm-up: {word} after {seconds:.0f} s, ratios {ratios[-3:]}")
            return {"agreed": agreed, "seconds": round(seconds, 1), "ratios": ratios}


def _alone(source: Source, farm: Arm, block_s: float, seats: Seats) -> dict[str, float] | None:
    """Units per second of each pool in its fence while decode stands still."""
    if not source.pause(True):
        return None
    try:
        farm.on(True)
        time.sleep(SETTLE_S)
        begin = time.monotonic()
        time.sleep(2 * block_s)
        end = time.monotonic()
        farm.on(False)
    finally:
        source.pause(False)
    # decode was away: let it find its pace again
    time.sleep(1.0)
    return _rates(farm, [(begin, end)])


def _beside(record: Record, farm: Arm) -> dict[str, float]:
    spans = [(block.begin, block.end) for kind, block in record.blocks.get("farm", []) if kind == "arm"]
    return _rates(farm, spans)


def _rates(farm: Arm, spans: list[tuple[float, float]]) -> dict[str, float]:
    seconds = sum(end - begin for begin, end in spans)
    rates: dict[str, float] = {}
    for worker in farm.workers:
        units = sum(worker.units(begin, end) for begin, end in spans)
        rates[worker.work.pool] = rates.get(worker.work.pool, 0.0) + (units / seconds if seconds else 0.0)
    return rates


def _throughput(measured: dict[str, Any]) -> dict[str, Any]:
    beside = measured["beside"]
    trials = [rates for rates in measured["alone"] if rates is not None]
    if not trials:
        return {"beside": beside, "alone": None, "ratio": None}
    alone = {pool: sum(rates[pool] for rates in trials) / len(trials) for pool in beside}
    ratio = {pool: beside[pool] / alone[pool] if alone[pool] else None for pool in beside}
    return {"beside": beside, "alone": alone, "ratio": ratio}


def _mean_steal(blocks: list[tuple[str, Block]]) -> float | None:
    seen = [block.steal for kind, block in blocks if kind == "arm" and block.steal is not None]
    return sum(seen) / len(seen) if seen else None


def _host(machine: Topology | None) -> dict[str, Any]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "processor": model,
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "hypervisor": None if machine is None or machine.bare_metal else machine.hypervisor or "not known",
        "gpus": [gpu.name for gpu in machine.gpus] if machine else [],
    }


__all__ = ["EXIT_CODES", "Options", "PinningError", "Record", "conclude", "run"]
