"""What the proofs of stillness on one GPU and on two have in common: figures, arms and breaches.

Not run by itself: see :mod:`tests.benchmarks.stillness_gpu` and :mod:`tests.benchmarks.stillness_two_gpus`.
With ``--cpu`` every part runs in CPU form, to try the script; with fewer than four ``--minutes`` every part
is as short as it can be, and its figures show that the script works and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpu_pinning import PinningError, read_topology
from gpu_pinning.stillness import core_harm
from gpu_pinning.stillness.breach import denoise_work, loose_work, try_breach
from gpu_pinning.stillness.farm_load import COPIES_VARIABLE, DEVICE_VARIABLE
from gpu_pinning.stillness.launching import on_cpus, on_gpu
from gpu_pinning.stillness.run import Options, cuda_is_there, run
from gpu_pinning.stillness.seating import PER_CPU, Seats, seat
from gpu_pinning.stillness.sources import DecodeProcess
from tests.benchmarks.stillness_needs import out_of, stand_ins

P99_UPPER = 1.01
CONTROL_P99 = 1.5
THROUGHPUT = 0.95
GUARD_CPU = 0.03
PARTS = ("cores", "graph", "breach", "host", "eager")
BREACH_S = 55.0
"""What one breach takes, about: the work alone, a baseline to learn, twelve seconds to watch, the rest."""
SHORT_MINUTES = 4.0


class Findings:
    """Figures with their goals, and what could not be run; written to ``report.json`` after each part."""

    def __init__(self, out: Path, began: float) -> None:
        self.figures: list[dict[str, Any]] = []
        self.not_run: list[str] = []
        self.about: dict[str, Any] = {}
        self.runs: dict[str, Any] = {}
        self._out = out
        self._began = began

    def add(self, name: str, value: float | bool | None, goal: str, kept: bool | None) -> None:
        """One figure; ``kept`` None: it has no goal."""
        self.figures.append({"figure": name, "value": value, "goal": goal, "kept": kept})

    def save(self) -> None:
        """Write all that is known."""
        found = {
            **self.about,
            "figures": self.figures,
            "not_run": self.not_run,
            "seconds": round(time.monotonic() - self._began, 1),
            "runs": self.runs,
        }
        part = self._out / "report.part"
        part.write_text(json.dumps(found, indent=1, default=str), encoding="utf-8")
        part.replace(self._out / "report.json")

    @property
    def code(self) -> int:
        """The exit code: 1 a figure was missed, 3 none was but parts could not be run, 0 all was reached."""
        if any(figure["kept"] is False for figure in self.figures):
            return 1
        return 3 if self.not_run else 0

    def table(self) -> str:
        """As plain text."""
        lines = [f"{'figure':<58} {'value':>12}  {'goal':<14} kept"]
        for row in self.figures:
            value = row["value"]
            text = f"{value:.4f}" if isinstance(value, float) else str(value)
            kept = {True: "yes", False: "MISSED", None: ""}[row["kept"]]
            lines.append(f"{row['figure']:<58} {text:>12}  {row['goal']:<14} {kept}")
        return "\n".join([*lines, *(f"not run: {what}" for what in self.not_run)])


class Proof:
    """One script's run. ``gpus``: how many NVIDIA GPUs it needs."""

    def __init__(self, purpose: str, gpus: int, arguments: list[str] | None = None) -> None:
        self._gpus = gpus
        self._began = time.monotonic()
        parser = argparse.ArgumentParser(
            description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        given = sys.argv[1:] if arguments is None else arguments
        parser.add_argument("--out", type=Path, default=out_of(given))
        parser.add_argument("--minutes", type=float, default=9.0, help="for all of it, the start apart")
        parser.add_argument("--quartets", type=int, default=6)
        parser.add_argument("--parts", default=",".join(PARTS), help="some of these, in this order")
        parser.add_argument(
            "--real-cores",
            type=int,
            default=0,
            metavar="N",
            help="CPU n and CPU n + N are threads of one core, as the part `cores` found",
        )
        parser.add_argument("--cpu", action="store_true", help="in CPU form, to try the script")
        chosen = parser.parse_args(given)
        self._out: Path = chosen.out
        self._seconds = chosen.minutes * 60
        self._short = chosen.minutes < SHORT_MINUTES
        self._cpu: bool = chosen.cpu
        self._real_cores: int = chosen.real_cores
        self._quartets: int = 1 if self._short else chosen.quartets
        self._parts = [part for part in chosen.parts.split(",") if part]
        unknown = set(self._parts) - set(PARTS)
        if unknown:
            parser.error(f"--parts: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
        self._out.mkdir(parents=True, exist_ok=True)
        self._decode: DecodeProcess | None = None
        self.found = Findings(self._out, self._began)
        self.found.about = {
            "short": self._short,
            "cpu_form": self._cpu,
            "real_cores": self._real_cores,
            "stand_ins": stand_ins(),
        }

    def say(self, text: str) -> None:
        """Print at once, with the time since the start."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)

    def run(self) -> int:
        """Everything that was asked for; the exit code."""
        # a call that is cut off ends its children and keeps what it has found
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
        self.say("reading the machine")
        machine = read_topology()
        (self._out / "topology.json").write_text(machine.dump(), encoding="utf-8")
        missing = None if self._cpu else self._why_not(len(machine.gpus), machine.nvml)
        if missing is not None:
            self.found.not_run.append(missing)
            return self._end()
        self.found.not_run += stand_ins()
        if self._real_cores:
            machine = core_harm.with_real_cores(machine, self._real_cores)
        seats = seat(machine, None, decode_gpu=not self._cpu)
        gpu = "shared" if self._cpu else seats.decode_gpu
        with tempfile.TemporaryDirectory(prefix="stillness-") as folder:
            self._folder = Path(folder)
            parts: dict[str, Callable[[], None]] = {
                "cores": lambda: self._cores(seats),
                "graph": lambda: self._arms("graph", 0.5, seats),
                "eager": lambda: self._arms("eager", 1.0, seats),
                "breach": lambda: self._breach(gpu, seats),
                "host": lambda: self._breach(None, seats),
            }
            try:
                for number, part in enumerate(self._parts):
                    left = self._left() - self._kept_for(self._parts[number + 1 :])
                    if left < 45.0 and part != "cores" and not self._short:
                        self.found.not_run.append(f"{part}: only {left:.0f} s were left for it")
                        continue
                    self.say(f"=== {part}, {self._left():.0f} s left")
                    self._try(part, parts[part])
                    self.found.save()
            finally:
                self._let_go()
        return self._end()

    def _try(self, part: str, run_it: Callable[[], None]) -> None:
        try:
            run_it()
        except PinningError as error:
            self.found.not_run.append(f"{part}: {error}")
        except Exception:  # what was measured so far is kept
            self.found.not_run.append(f"{part}: {traceback.format_exc(limit=-5)}")
        else:
            return
        self.say(self.found.not_run[-1])

    def _why_not(self, gpus: int, nvml: str | None) -> str | None:
        if gpus < self._gpus:
            have = f"this machine has {gpus}" + (f" ({nvml})" if nvml and not gpus else "")
            return f"everything: {self._gpus} NVIDIA GPU{'s' * (self._gpus > 1)} needed, {have}"
        if not cuda_is_there():
            return "everything: torch with CUDA is needed (python3 -m pip install torch), and is not here"
        return None

    def _end(self) -> int:
        self.found.save()
        print(self.found.table(), flush=True)
        if self._short:
            print("a short run: these figures show that the script works, and nothing else", flush=True)
        self.say("done")
        return self.found.code

    def _left(self) -> float:
        return self._seconds - (time.monotonic() - self._began)

    @staticmethod
    def _kept_for(parts: list[str]) -> float:
        return BREACH_S * sum(part in ("breach", "host") for part in parts)

    @contextlib.contextmanager
    def _decoding(self, form: str, seats: Seats) -> Iterator[DecodeProcess]:
        """A decode load of this form at work: the last one where it fits, since a start takes its time."""
        form = "cpu" if self._cpu else form
        if self._decode is None or self._decode.form != form or not self._decode.alive:
            self._let_go()
            self.say(f"starting decode: {form}")
            # only started: what works beside it can load meanwhile
            gpu = seats.decode_gpu
            self._decode = DecodeProcess(form, seats.decode, self._folder, gpu=gpu, wait=False)
        try:
            yield self._decode
        except BaseException:
            # who knows in what state it was left
            self._let_go()
            raise

    def _let_go(self) -> None:
        if self._decode is not None:
            self._decode.close()
            self._decode = None

    def _cores(self, seats: Seats) -> None:
        """What busy cores do to another one, whatever runs on them: the hypervisor's and the cores' share."""
        look_s = 0.05 if self._short else 0.15
        found = core_harm.measure(seats.decode, seats.farm, look_s)
        self.say(core_harm.in_words(found))
        self.found.runs["cores"] = found
        add = self.found.add
        add("cores: a loop while farm cores do arithmetic, of alone", found["farm_on_arithmetic"], "", None)
        add("cores: a loop while farm cores copy memory, of alone", found["farm_on_memory"], "", None)
        worst = max(found["beside_one"].values(), default=None)
        add("cores: a loop beside the one core that slows it most", worst, "", None)
        add("cores: alone, slowest of four looks to fastest", found["alone_spread"], "", None)

    def _arms(self, form: str, share: float, seats: Seats) -> None:
        """The arms of one form, in this share of the time that is not kept for breaches."""
        later = self._parts[self._parts.index(form) + 1 :]
        seconds = (self._left() - self._kept_for(later)) * (share if {"graph", "eager"} & set(later) else 1.0)
        with self._decoding(form, seats) as decode:
            options = Options(
                seconds=20.0 if self._short else max(30.0, seconds - 8.0),
                form=decode.form,
                hurt=True,
                out=self._out / form,
                # launch-bound steps are longer, and its arms three more: fewer rounds, longer blocks
                least_block_s=0.8 if self._short else 0.5,
                quartets=self._quartets if form == "graph" else max(1, self._quartets - 2),
                explain=form == "eager",
                real_cores=self._real_cores,
            )
            report, _ = run(options, self.say, decode)
        self.found.runs[form] = {key: value for key, value in report.items() if key != "plots"}
        self._judge(form, report)

    def _judge(self, form: str, report: dict[str, Any]) -> None:
        add = self.found.add
        # the launch-bound form is to be explained, not to be kept within 1 % on a virtual machine
        bound = form != "eager"
        if report["verdict"] in ("inconclusive", "void"):
            self.found.not_run.append(f"a verdict on {form}: {report['verdict']}: {report['reasons'][0]}")
        for name in ("placebo", "farm", "fenced", "spare", "loose"):
            if (arm := report["arms"].get(name)) is None:
                continue
            goal = name == "farm" and bound
            add(f"{form}: {name} p50 ratio", arm["p50"]["value"], "", None)
            add(f"{form}: {name} p99 ratio", arm["p99"]["value"], "", None)
            upper = arm["p99"]["upper"]
            words = f"<= {P99_UPPER}" if goal else ""
            add(f"{form}: {name} p99 ratio, upper bound", upper, words, upper <= P99_UPPER if goal else None)
            add(f"{form}: {name} p99.9 ratio, pooled", arm["p999"], "", None)
        if (control := report["arms"].get("control")) is not None:
            value = control["p99"]["value"]
            add(f"{form}: positive control p50 ratio", control["p50"]["value"], "", None)
            add(f"{form}: positive control p99 ratio", value, f">= {CONTROL_P99}", value >= CONTROL_P99)
        if (launch := report["decode"].get("launch_share")) is not None:
            add(f"{form}: share of a step that its launch takes", launch, "", None)
        throughput = report["throughput"]
        for pool, ratio in (throughput["ratio"] or {}).items():
            reached = None if ratio is None else ratio >= THROUGHPUT
            add(f"{form}: {pool} beside decode, of alone", ratio, f">= {THROUGHPUT}", reached)
            if (apart := throughput["told_apart"][pool]) is not None:
                add(f"{form}: {pool}, core time kept", apart["core_time"], "", None)
                add(f"{form}: {pool}, work per core second kept", apart["core_speed"], "", None)
        add(f"{form}: share of the farm arm that the guard held", report["guard"]["held_share"], "", None)
        share = report["guard"]["cpu_share"]
        add(f"{form}: guard, share of one core", share, f"< {GUARD_CPU}", share < GUARD_CPU)
        for what in ("steal", "decode_cpus_busy", "decode_waited"):
            for name, value in report[what].items():
                add(f"{form}: {what}, {name}", value, "", None)

    def _breach(self, gpu: str | None, seats: Seats) -> None:
        """A breach on the neighbour's own GPU, or without one on its cores."""
        name = "breach on decode's GPU" if gpu else "breach on decode's cores"
        copies = {COPIES_VARIABLE: str(PER_CPU * len(seats.everyone))}
        work = loose_work("encode", seats.everyone)
        units, more = 10 if self._short else 40, copies
        if gpu and self._cpu:
            work, units, more = loose_work("denoise", seats.everyone), 400, copies | {DEVICE_VARIABLE: "cpu"}
        elif gpu:
            work, units, more = denoise_work, 100 if self._short else 400, on_gpu(gpu)
        with self._decoding("graph", seats) as decode, on_cpus(seats.farm):
            folder = self._folder / ("own-gpu" if gpu else "host")
            folder.mkdir()
            decode.ready()
            self.say("decode is at work")
            seen = try_breach(
                decode,
                folder,
                gpu=gpu,
                work=work,
                units=units,
                watch_s=5.0 if self._short else 12.0,
                learn_s=1.0 if self._short else 6.0,
                more=more,
                keep=True,
                say=self.say,
            )
        self.found.runs[name] = seen
        add = self.found.add
        limit = "<= 0.5" if gpu else "<= 5"
        add(f"{name}: decode p50 before, ms", seen["baseline_p50_ms"], "", None)
        add(f"{name}: decode p50 while it lasted, ms", seen["harmed_p50_ms"], "", None)
        add(f"{name}: decided after, s", seen["decided_after_s"], "", None)
        add(f"{name}: frozen after, s", seen["frozen_after_s"], limit, seen["frozen_in_time"])
        add(f"{name}: freezing took, s", seen["freezing_took_s"], "", None)
        limit = "<= 1.0" if gpu else ""
        add(
            f"{name}: decode within 5 % after, s",
            seen["back_after_s"],
            limit,
            seen["back_in_time"] if gpu else None,
        )
        add(f"{name}: finished later, same result", seen["same_result"], "True", seen["same_result"])
        share = seen["guard_cpu_share"]
        add(f"{name}: guard, share of one core", share, f"< {GUARD_CPU}", share < GUARD_CPU)
