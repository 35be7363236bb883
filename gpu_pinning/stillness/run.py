"""One run of the bench: warm up, interleave the arms, compare, judge, write the report.

Arms come in quartets A B B A, round after round: a placebo (idle against idle), the farm in its fence under
the guard, and with ``hurt`` the farm with neither. Warm-up repeats the placebo until it agrees within 1 %; if
it never does, the run is inconclusive. What the farm gets done beside decode is compared with what it gets
done in the same fence while decode stands still. After each arm what is known so far is written, so that
a run that is cut off leaves its arms.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pinning.errors import PinningError
from gpu_pinning.machine import Topology
from gpu_pinning.stillness import report as reports
from gpu_pinning.stillness.arms import SETTLE_S, Arm, Block, run_block
from gpu_pinning.stillness.core_harm import with_real_cores
from gpu_pinning.stillness.crew import FarmWorker, Work
from gpu_pinning.stillness.decode_load import FORMS, describe
from gpu_pinning.stillness.facts import host_facts, read_machine
from gpu_pinning.stillness.launching import held_by, on_cpus
from gpu_pinning.stillness.live import Live
from gpu_pinning.stillness.record import HURTING, Record, arm_to_json, conclude, mean_of
from gpu_pinning.stillness.seating import Seats, everywhere, loads_in_words, seat, unfenced
from gpu_pinning.stillness.sources import DecodeProcess, DecodeServer, Source
from gpu_pinning.stillness.statistics import REPEATS, TOLERANCE, Judgement, Outcome
from gpu_pinning.stillness.throughput import Throughput, rates
from gpu_pinning.stillness.watched import Guarded
from gpu_pinning.wishes import Wishes

EXIT_CODES = {Outcome.STILL: 0, Outcome.DISTURBED: 4, Outcome.VOID: 5, Outcome.INCONCLUSIVE: 6}
WARM_UP_MOST_S = 300.0
_SHORTEST_S = 20.0
_LONGEST_BLOCK_S = 5.0
_FULL_BLOCK_S = 1.2
"""Shorter blocks hold too few steps; two longer rounds are better than three such ones."""
_BACK_S = 1.0
_WRITE_S = 3.0
_QUICK_REPEATS = 20
"""Bootstrap repeats for what is written after each arm of a round."""
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
    least_block_s: float = 0.5
    real_cores: int = 0
    """Above 0: CPU n and CPU n + this are threads of one core (:mod:`gpu_pinning.stillness.core_harm`)."""
    seed: int = 0
    live: Path | None = None
    """A folder to show the run in as it happens; see :mod:`gpu_pinning.stillness.live`."""
    explain: bool = False
    """Also, without the guard: the farm in its fence, the same with every other worker at rest, and the same
    workers without a fence. What the fence and what spare cores win back, and what is left to the guard."""

    def __post_init__(self) -> None:
        if not _SHORTEST_S <= self.seconds < math.inf:
            raise ValueError(f"seconds = {self.seconds:g}: a run takes {_SHORTEST_S:g} s or more")
        if self.form not in (*FORMS, "auto"):
            raise ValueError(f"form = {self.form!r}: choose one of auto, {', '.join(FORMS)}")
        if self.quartets < 1:
            raise ValueError(f"quartets = {self.quartets}: at least 1 is needed")


def cuda_is_there() -> bool:
    """Whether the built-in load can decode on a GPU; torch is imported for it."""
    try:
        import torch

        return bool(torch.cuda.is_available())
    except ImportError:
        return False


def run(
    options: Options, say: Say = print, source: DecodeProcess | None = None
) -> tuple[dict[str, Any], int]:
    """Run, write ``stillness.json`` and ``stillness.html`` into ``options.out``; the report and exit code.

    ``source`` is a decode load of that form which runs already, and goes on afterwards. Raises
    :class:`PinningError` where no decode load or no farm work can be started at all.
    """
    form = options.form
    if form == "auto":
        form = "graph" if options.url is None and cuda_is_there() else "cpu"
    elif form != "cpu" and options.url is None and not cuda_is_there():
        raise PinningError(
            f"form = {form!r}: needs torch with CUDA and a GPU, which are not here; take form cpu, "
            "which says nothing of a server on a GPU, or run it where torch sees the GPU"
        )
    machine = read_machine()
    if options.real_cores and machine is not None:
        machine = with_real_cores(machine, options.real_cores)
    wishes = Wishes.load(options.farm_toml) if options.farm_toml else None
    seats = seat(machine, wishes, decode_gpu=form != "cpu" or options.url is not None)
    bench = _Bench(options, form, machine, seats, say)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stillness-")))
        stack.enter_context(on_cpus(seats.farm))
        bench.set_up(folder, stack, source)
        bench.rounds()
        found, judgement = bench.found(REPEATS)
        bench.tell_end(judgement)
    reports.write(found, options.out)
    say(reports.table(found))
    return found, EXIT_CODES[judgement.outcome]


class _Bench:
    """A run and what it has found so far."""

    def __init__(self, options: Options, form: str, machine: Topology | None, seats: Seats, say: Say) -> None:
        self.options, self.form, self.machine, self.seats = options, form, machine, seats
        self.live: Live | None = None
        self._say = say
        self.began = time.time()
        self.record = Record()
        self.throughput = Throughput()
        self.warm: dict[str, Any] | None = None
        self.arms: dict[str, Arm] = {}
        self.held: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self.guard: Guarded | None = None
        self.guarded: dict[str, Any] | None = None

    def say(self, text: str) -> None:
        """To whoever runs it, and whoever watches."""
        self._say(text)
        if self.live is not None:
            self.live.say(text)

    def tell_end(self, judgement: Judgement) -> None:
        """Whoever watches sees the verdict."""
        if self.live is not None:
            self.live.end(judgement.outcome.value, judgement.reasons)

    def set_up(self, folder: Path, stack: ExitStack, given: DecodeProcess | None = None) -> None:
        """Start decode, the guard and all workers, all at once: what they load takes its time."""
        options, seats = self.options, self.seats
        self.source = source = given or _source(options, self.form, seats, folder)
        if given is None:
            stack.callback(source.close)
        if options.live is not None:
            about = {"decode": options.url or describe(self.form), "loads": loads_in_words(seats.works)}
            self.live = Live(options.live, about | {"hurt": options.hurt})
            stack.callback(self.live.close)
        self.say("starting decode and farm workers")
        self.arms = {"placebo": Arm("placebo")}
        teams = {"farm": seats.works}
        if options.explain:
            teams["loose"] = unfenced(seats)
        if options.hurt:
            teams["control"] = everywhere(seats)
        for name, works in teams.items():
            if works:
                crew = _crew(name, works, self.machine, folder, stack, self.live)
                self.arms[name] = Arm(name, crew)
        for name, arm in self.arms.items():
            for worker in arm.workers:
                worker.ready()
                worker.run(False)
            if arm.workers:
                self.say(f"{name}: {len(arm.workers)} workers are ready")
                self.held[name] = held_by(pid for worker in arm.workers for pid in worker.pids())
        if isinstance(source, DecodeProcess):
            source.ready()
            self.say("decode is ready")
            self.facts = source.facts()
        self.held["decode"] = held_by(source.pids())
        farm = self.arms["farm"]
        self.guard = Guarded(source, seats.farm)
        farm.keeper = self.guard
        if options.explain:
            # what the fence does by itself: a guard that holds would hide it
            self.arms["fenced"] = Arm("fenced", farm.workers)
            if len(farm.workers) > 1:
                self.arms["spare"] = Arm("spare", every_other(farm.workers))
        stack.callback(self._end_guard)
        if self.live is not None:
            self.live.watch(source, [worker for arm in self.arms.values() for worker in arm.workers])

    def _end_guard(self) -> None:
        if self.guard is not None:
            self.guarded = self.guard.describe()
            self.guard.close()
            self.guard = None

    def rounds(self) -> None:
        """Warm up, then round after round of every arm."""
        options, seats = self.options, self.seats
        ends = self.began + 0.95 * options.seconds - _WRITE_S
        self.say("warming up")
        most_s = min(WARM_UP_MOST_S, 0.25 * options.seconds)
        rounds, names, least_s = options.quartets, list(self.arms), options.least_block_s
        block_s = _block_s(0.6 * options.seconds, rounds, names, least_s)
        self.warm = _warm_up(self.source, seats, block_s, most_s, self.say)
        # warm-up took what it needed; the rest is for the rounds
        while rounds > 2 and _block_s(ends - time.time(), rounds, names, 0.0) < _FULL_BLOCK_S:
            rounds -= 1
        block_s = _block_s(ends - time.time(), rounds, names, least_s)
        fewer = f" (not {options.quartets}: blocks would be too short)" if rounds < options.quartets else ""
        self.say(f"{rounds} rounds{fewer} of {len(names)} arms, blocks of {block_s:.1f} s")
        for number in range(rounds):
            for name, arm in self.arms.items():
                if name == "control" and number not in control_rounds(rounds):
                    continue
                if name == "farm" and number % 2:
                    self._alone(block_s)
                blocks = self._quartet(arm, block_s)
                self.record.add(name, blocks)
                if name == "farm":
                    self.throughput.beside.append(rates([b for kind, b in blocks if kind == "arm"]))
                    if not number % 2:
                        self._alone(block_s)
                reports.write_data(self.found(_QUICK_REPEATS)[0] | {"partial": True}, options.out)
            self.say(f"round {number + 1} of {rounds} is done")

    def _quartet(self, arm: Arm, block_s: float) -> list[tuple[str, Block]]:
        assert self.guard is not None
        # what decode feels without isolation is not to be learnt from, nor held against the farm
        self.guard.away = arm.keeper is None
        try:
            blocks = []
            for kind in ("idle", "arm", "arm", "idle"):
                busy = arm if kind == "arm" and arm.workers else None
                if self.live is not None:
                    self.live.now(arm.name, busy is not None, arm.name not in HURTING if busy else None)
                blocks.append((kind, run_block(self.source, busy, block_s, self.seats.decode)))
            return blocks
        finally:
            self.guard.away = False

    def _alone(self, block_s: float) -> None:
        """The farm arm in its fence while decode stands still, as long as both its blocks beside decode."""
        assert self.guard is not None
        self.guard.away = True
        try:
            if not self.source.pause(True):
                return
            if self.live is not None:
                self.live.now("alone", True, True)
            blocks = [run_block(self.source, self.arms["farm"], block_s, self.seats.decode) for _ in range(2)]
            self.throughput.alone.append(rates(blocks))
        finally:
            self.source.pause(False)
            # decode was away: let it find its pace again
            time.sleep(_BACK_S)
            self.guard.away = False

    def _gpu_name(self) -> str | None:
        uuid = self.seats.decode_gpu if self.form != "cpu" or self.options.url else None
        return self.machine.gpu(uuid).name if uuid and self.machine is not None else None

    def found(self, repeats: int) -> tuple[dict[str, Any], Judgement]:
        """The report of what was measured so far."""
        results, judgement = conclude(self.record, self.warm, self.options, repeats)
        options, seats, machine = self.options, self.seats, self.machine
        guarded = self.guard.describe() if self.guard is not None else self.guarded
        found = {
            "version": 2,
            "verdict": judgement.outcome.value,
            "reasons": list(judgement.reasons),
            "began_at": self.began,
            "seconds": round(time.time() - self.began, 1),
            "host": host_facts(machine, seats),
            "decode": {
                "form": "server" if options.url else self.form,
                "model": options.url or describe(self.form),
                "cpus": list(seats.decode),
                "gpu": self._gpu_name(),
                **self.facts,
            },
            "farm": {
                "loads": loads_in_words(seats.works),
                "control": loads_in_words(everywhere(seats)) if options.hurt else [],
                "cpus": list(seats.farm),
                "fence": sorted({worker.fenced_by for worker in self.arms["farm"].workers}),
                "class": seats.guarantee,
                "class_reason": seats.reason,
                "notes": list(seats.notes),
            },
            "held_by": self.held,
            "warm_up": self.warm,
            "arms": {name: arm_to_json(result) for name, result in results.items()},
            "too_few_steps": self.record.short,
            "throughput": self.throughput.to_json(options.seed),
            "guard": guarded,
            "steal": mean_of(self.record, "steal"),
            "decode_cpus_busy": mean_of(self.record, "busy"),
            "decode_waited": mean_of(self.record, "waited"),
            "hurt": options.hurt,
            "plots": reports.plot_data(self.record.blocks),
        }
        return found | {"holds_for": reports.subject(found)}, judgement


def _source(options: Options, form: str, seats: Seats, folder: Path) -> Source:
    if options.url is not None:
        return DecodeServer(options.url, options.model)
    gpu = seats.decode_gpu if form != "cpu" else None
    return DecodeProcess(form, seats.decode, folder, gpu=gpu, wait=False)


def _crew(
    kind: str,
    works: Iterable[Work],
    machine: Topology | None,
    folder: Path,
    stack: ExitStack,
    live: Live | None,
) -> list[FarmWorker]:
    crew = []
    for number, work in enumerate(works):
        picture = live.picture(work.pool) if live is not None and work.copies == 1 else None
        worker = FarmWorker(work, f"{kind}-{number}", machine, folder, picture, wait=False)
        stack.callback(worker.close)
        crew.append(worker)
    return crew


def every_other(workers: Sequence[FarmWorker]) -> list[FarmWorker]:
    """Half of the workers of each pool, so that what is compared differs in cores and not in kinds of work.

    Where each pool has one worker alone: half of the workers.
    """
    pools: dict[str, list[FarmWorker]] = {}
    for worker in workers:
        pools.setdefault(worker.work.pool, []).append(worker)
    half = [worker for row in pools.values() for worker in row[::2]]
    return half if len(half) < len(workers) else list(workers[::2])


def _block_s(left_s: float, rounds: int, arms: Iterable[str], least_s: float) -> float:
    """How long a block may be, so that all rounds fit in the time that is left."""
    names = [name for name in arms if name != "control"]
    # each round ends with two blocks alone and the time that decode needs to find its pace again
    blocks = rounds * (4 * len(names) + 2) + (4 * len(control_rounds(rounds)) if "control" in arms else 0)
    return min(_LONGEST_BLOCK_S, max(least_s, (left_s - rounds * _BACK_S) / blocks - SETTLE_S))


def control_rounds(rounds: int) -> set[int]:
    """Rounds in which the positive control runs: two show it, and it hurts."""
    return {0, rounds // 2} if rounds > 1 else {0}


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


__all__ = ["EXIT_CODES", "Options", "run"]
