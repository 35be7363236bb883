"""One film on two GPUs, measured in one call: ``python -m tests.benchmarks.gang_gpu --out DIR``.

Random Wan weights at ``--shape`` (14b; 832x480, 81 frames), the project's own engine and gang:

- *speed*: seconds of a denoise step with guidance, on one GPU (as the engine does it, one pass after the
  other, and both as one batch) and on two: guidance split, sequence split by heads (Ulysses) and in a ring.
  Median of several steps after the same warm-up everywhere; peak memory of each rank; the latents against
  one GPU's. Two GPUs can share the guidance or the sequence; both at once needs four.
- *faults*, at ``--fault-shape`` (1.3b): a rank killed in the middle of a step, then the film resumed; a park
  and a cancel given in the middle of a step.

Every part runs in a process of its own, which is killed when it hangs. ``results.json`` is written after each
part, ``table.md`` at the end. Parts that no longer fit into ``--minutes`` are left out, and it says so. With
one GPU or none it says what it could not run, and ends with 0. ``--device cpu --shape tiny`` runs every line
on two processes over gloo; its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GOAL = 1.8
"""Least scaling of the best way on two GPUs over the best of one."""
ENDED_S = 60.0
"""Longest time in which all ranks must have come out of a killed rank's sample."""
FAULT_STEPS = 8
RESERVE_S = 130.0
"""Kept for the faults while there are speed parts left."""
MARGIN_S = 15.0
PASS_S = {"14b": 3.2, "1.3b": 0.61, "tiny": 0.6}
"""Seconds of one pass on one H200, for planning alone."""
STEPS = 5
START_S = 40.0
TITLES = {
    "guidance": "two, guidance split",
    "ulysses": "two, sequence by heads (Ulysses)",
    "ring": "two, sequence in a ring",
}


def say(text: str) -> None:
    """A line of progress, with the time."""
    print(f"[{time.monotonic() - BEGAN:6.1f} s] {text}", flush=True)


BEGAN = time.monotonic()


@dataclass
class Results:
    """What was found so far; on the disk after every part."""

    out: Path
    data: dict[str, Any] = field(default_factory=lambda: {"speed": {}, "faults": {}, "left_out": []})

    def put(self, part: str, name: str, value: Any) -> None:
        """One more figure."""
        self.data[part][name] = value
        self.write()

    def leave_out(self, name: str, why: str) -> None:
        """A part that is not run."""
        say(f"left out: {name}: {why}")
        self.data["left_out"].append({"part": name, "why": why})
        self.write()

    def write(self) -> None:
        """Whole or not at all."""
        path = self.out / "results.json"
        path.with_suffix(".part").write_text(json.dumps(self.data, indent=2) + "\n")
        path.with_suffix(".part").replace(path)


class Worker:
    """A process that runs parts; asked over pipes, killed when it does not answer in time."""

    def __init__(self, folder: Path, shape: str, device: str) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.gang_work", str(folder), shape, device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
            process_group=0,
        )
        self._buffer = b""

    def answer(self, within_s: float) -> dict[str, Any]:
        """Its next line; ``failed`` where it has died or does not answer in time (it is killed then)."""
        assert self._process.stdout is not None
        until = time.monotonic() + within_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = until - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self.end(at_once=True)
                    return {"failed": f"no answer within {within_s:.0f} s: killed", "hung": True}
                read = os.read(self._process.stdout.fileno(), 65536)
                if not read:
                    return {"failed": f"it ended with status {self._process.wait()}", "died": True}
                self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, within_s: float, **request: Any) -> dict[str, Any]:
        """One part."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return {"failed": f"it ended with status {self._process.wait()}", "died": True}
        return self.answer(within_s)

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def end(self, at_once: bool = False) -> float:
        """End it; seconds that took. Its ranks die with it, by the parent-death signal."""
        began = time.monotonic()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        if not at_once:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        return time.monotonic() - began


class Bench:
    """One call: its time, its parts in order of what matters most."""

    def __init__(self, asked: argparse.Namespace, results: Results) -> None:
        self.asked, self.results = asked, results
        self.until = BEGAN + asked.minutes * 60 - MARGIN_S
        self.device: str = asked.device
        self.backends = ["native", "cudnn"] if self.device == "cuda" else ["native"]

    def left(self) -> float:
        """Seconds that are left."""
        return self.until - time.monotonic()

    def worker(self, shape: str) -> Worker | None:
        """A worker over a fresh folder."""
        folder = Path(tempfile.mkdtemp(prefix=f"gang-{shape}-", dir=self.asked.scratch))
        self.folder = folder
        return self.started(folder, shape)

    def started(self, folder: Path, shape: str) -> Worker | None:
        """A worker over a folder that is there."""
        worker = Worker(folder, shape, self.device)
        ready = worker.answer(min(180.0, max(1.0, self.left())))
        if "failed" in ready:
            self.results.leave_out(f"everything at {shape}", f"its process did not start: {ready['failed']}")
            return None
        return worker

    # --- speed -----------------------------------------------------------------------------------------

    def speed(self, reserve_s: float) -> None:
        """Steps on one GPU and on two; ``reserve_s`` is kept for the faults."""
        shape = self.asked.shape
        worker = self.worker(shape)
        if worker is None:
            return
        variants = [("one", attention) for attention in self.backends]
        variants += [("guidance", "native"), ("ulysses", "native")]
        variants += [
            (share, attention)
            for share, attention in (("ulysses", "cudnn"), ("ring", "cudnn"), ("guidance", "cudnn"))
            if attention in self.backends
        ]
        if "cudnn" not in self.backends:
            self.results.leave_out("ring", "no attention kernel of a CPU gives the log-sum-exp that it needs")
        self.results.leave_out("guidance split and split sequence at once", "it needs four GPUs")
        once = PASS_S[shape]
        for share, wanted in variants:
            attention = wanted
            if "failed" in self.results.data["speed"].get(f"one {wanted}", {}) and share != "one":
                if share != "ring":
                    self.results.leave_out(f"{share} {wanted}", "one GPU could not do it either")
                    continue
                # torch's own choice is this kernel as well, and it gives what a ring needs
                attention = "flash_native"
            name = f"{share} {attention}"
            gpus = 1 if share == "one" else 2
            expected = 2 * once * (STEPS + 1) / gpus + (START_S if share == "one" and gpus == 1 else 12.0)
            if gpus == 2 and worker.alive and not self._has_two(share):
                expected += START_S
            if self.left() - reserve_s < expected:
                self.results.leave_out(name, f"{expected:.0f} s do not fit into what is left")
                continue
            if not worker.alive:
                again = self.started(self.folder, shape)
                if again is None:
                    return
                worker = again
            say(f"{shape}: {name} ...")
            found = worker.ask(
                min(self.left(), expected * 2 + 60), do="speed", name=name, gpus=gpus,
                gang="auto" if gpus == 1 else share, attention=attention, steps=STEPS,
            )  # fmt: skip
            self.results.put("speed", name, found)
            say(f"{name}: {_told(found)}")
            if "step_s" in found and share == "one":
                once = found["step_s"] / 2
        self._rest(worker, once, reserve_s)
        took = worker.end()
        say(f"the process of {shape} ended in {took:.1f} s")
        self._free("after the speed parts")

    def _has_two(self, share: str) -> bool:
        return any(not name.startswith("one") for name in self.results.data["speed"])

    def _rest(self, worker: Worker, once: float, reserve_s: float) -> None:
        if not worker.alive:
            return
        chosen = worker.ask(min(max(1.0, self.left()), 60), do="chosen", attention=self.backends[-1])
        self.results.put("speed", "auto", chosen)
        say(f"left to itself the engine takes: {chosen}")
        timed = {name: row["step_s"] for name, row in self._one().items()}
        if not timed or not worker.alive:
            return
        attention = min(timed, key=lambda name: timed[name]).split()[1]
        expected = 2 * once * 3 + 5
        if self.left() - reserve_s < expected:
            self.results.leave_out(
                "both passes as one batch", f"{expected:.0f} s do not fit into what is left"
            )
            return
        say("one GPU: both passes as one batch ...")
        found = worker.ask(min(self.left(), expected * 2 + 30), do="batched", attention=attention, repeats=2)
        self.results.put("speed", f"batched {attention}", found)
        say(f"both passes: {found}")

    def _one(self) -> dict[str, Any]:
        rows = self.results.data["speed"].items()
        return {name: row for name, row in rows if name.startswith("one ") and "step_s" in row}

    # --- faults ----------------------------------------------------------------------------------------

    def faults(self) -> None:
        """A rank killed, a park, a cancel; each while the ranks are in a step together."""
        shape = self.asked.fault_shape
        worker = self.worker(shape)
        if worker is None:
            return
        once = 2 * PASS_S[shape] * FAULT_STEPS + 25
        for gang in ("ulysses", "guidance"):
            parts = ("whole", "kill", "resume after kill", "park", "resume after park", "cancel")
            for part in parts:
                name = f"{gang}: {part}"
                if self.left() < once:
                    self.results.leave_out(name, f"{once:.0f} s do not fit into what is left")
                    continue
                if not worker.alive:
                    again = self.started(self.folder, shape)
                    if again is None:
                        return
                    worker = again
                request = self._fault(gang, part)
                if request is None:
                    self.results.leave_out(name, "the film to compare with is missing")
                    continue
                say(f"{shape}, {name} ...")
                began = time.monotonic()
                found = worker.ask(min(self.left(), once * 2 + 45), steps=FAULT_STEPS, gang=gang, **request)
                if part == "kill" and found.get("died"):
                    # a device that does not come back ends the process, as a slot's
                    found["came_out_s"] = round(time.monotonic() - began, 1)
                if part == "kill":
                    found["memory_in_use"] = used_bytes()
                self.results.put("faults", name, found)
                say(f"{name}: {_told(found)}")
        pids = [pid for row in self.results.data["faults"].values() for pid in row.get("ranks", [])]
        took = worker.end()
        still = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        say(f"the process of {shape} ended in {took:.1f} s; ranks that outlived it: {still or 'none'}")
        self.results.put("faults", "ranks that outlived their slot", {"pids": still})
        self._free("after the faults")

    def _fault(self, gang: str, part: str) -> dict[str, Any] | None:
        if part in ("whole", "kill"):
            return {"do": part}
        if part in ("park", "cancel"):
            return {"do": "stop", "how": part}
        frames = self.results.data["faults"].get(f"{gang}: whole", {}).get("frames")
        return {"do": "resume", "of": part.split()[-1], "expected": frames} if frames else None

    def _free(self, when: str) -> None:
        """How much of each GPU is in use, with none of our processes left."""
        used = used_bytes()
        if used:
            say(f"GPU memory in use {when}: {', '.join(f'{value / 2**20:.0f} MiB' for value in used)}")
            self.results.data.setdefault("memory_in_use", {})[when] = used
            self.results.write()


def used_bytes() -> list[int]:
    """Bytes in use on each GPU, by NVML; empty without one."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())]
        return [int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles]
    except Exception:  # no driver, no library
        return []


def links() -> str:
    """How the GPUs are joined, as the driver tells it; empty without one."""
    try:
        told = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=False, timeout=30
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout


def measured_row(data: dict[str, Any]) -> str:
    """These figures as a row of ``jobs.video.gang_choice.MEASURED``; empty where some are missing."""
    speed, about = data["speed"], data["speed"].get("auto", {})
    alone = [row["step_s"] for name, row in speed.items() if name.startswith("one ") and "step_s" in row]
    shared: dict[str, float] = {}
    for row in speed.values():
        if row.get("share") in TITLES and "step_s" in row:
            shared[row["share"]] = round(min(shared.get(row["share"], row["step_s"]), row["step_s"]), 4)
    if not alone or not shared or "tokens" not in about:
        return ""
    return (
        f"Measured(gpu={about['gpu']!r}, width={about['width']}, layers={about['layers']}, "
        f"tokens={about['tokens']}, gpus=2, alone_s={min(alone):.4f}, shared_s={shared})"
    )


def _told(found: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in found.items() if key != "frames"})


def table(data: dict[str, Any], shape: str) -> str:
    """The figures as Markdown."""
    speed = data["speed"]
    timed = {name: row for name, row in speed.items() if "step_s" in row}
    alone = [row["step_s"] for name, row in timed.items() if name.startswith("one ")]
    alone += [row["batch_of_two_s"] for row in speed.values() if "batch_of_two_s" in row]
    best = min(alone, default=None)
    lines = [
        f"Wan {shape} shapes, {data.get('machine', '')}. Scaling is over the best of one GPU.", "",
        "| GPUs | attention | s/step | scaling | same kernel | peak memory (GiB) | latents against one GPU |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for name, row in timed.items():
        share, attention = name.split()
        own = timed.get(f"one {attention}", {}).get("step_s")
        lines.append(
            f"| {'one' if share == 'one' else TITLES[share]} | {attention} | {row['step_s']:.3f} "
            f"| {best / row['step_s']:.2f} | {own / row['step_s']:.2f} | {_memory(row)} | {_equality(row)} |"
            if best and own
            else f"| {share} | {attention} | {row['step_s']:.3f} | | | {_memory(row)} | {_equality(row)} |"
        )
    for name, row in speed.items():
        if "batch_of_two_s" in row:
            lines.append(
                f"| one, both passes as one batch (denoiser alone) | {name.split()[1]} "
                f"| {row['batch_of_two_s']:.3f} | | | {_memory(row)} | |"
            )
    lines += ["", "| fault | what happened |", "| --- | --- |"]
    lines += [f"| {name} | {_told(row).strip('{}')} |" for name, row in data["faults"].items()]
    lines += [f"\nLeft out: {gone['part']} ({gone['why']})." for gone in data["left_out"]]
    return "\n".join(lines) + "\n"


def _memory(row: dict[str, Any]) -> str:
    return ", ".join(f"{value / 2**30:.1f}" for value in row.get("peak_vram", []) if value) or "-"


def _equality(row: dict[str, Any]) -> str:
    if "relative_error" not in row:
        return ""
    if row["bit_for_bit"]:
        return f"bit for bit ({row['compared_with']})"
    return (
        f"error {row['relative_error']:.2e} (rounding explains {row['tolerance']:.2e}), "
        f"{row['psnr_db']} dB ({row['compared_with']})"
    )


def verdict(data: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    wrong = []
    speed = data["speed"]
    one = [row["step_s"] for name, row in speed.items() if name.startswith("one ") and "step_s" in row]
    one += [row["batch_of_two_s"] for row in speed.values() if "batch_of_two_s" in row]
    two = {
        name: row["step_s"]
        for name, row in speed.items()
        if not name.startswith("one ") and "step_s" in row and row.get("share")
    }
    if one and two:
        best = min(two, key=lambda name: two[name])
        scaling = min(one) / two[best]
        print(f"best of two GPUs: {best}, {scaling:.3f} times the best of one (goal {GOAL})")
        if data.get("device") == "cuda" and scaling < GOAL:
            wrong.append(f"scaling {scaling:.3f} is under {GOAL}")
    for name, row in speed.items():
        if row.get("share") == "guidance" and "bit_for_bit" in row and not row["bit_for_bit"]:
            wrong.append(f"{name}: not the bits of one GPU (error {row['relative_error']:.2e})")
        elif "relative_error" in row and row["relative_error"] > row["tolerance"]:
            wrong.append(f"{name}: error {row['relative_error']:.2e} is over {row['tolerance']:.2e}")
        if "failed" in row:
            wrong.append(f"{name}: {row['failed']}")
    for name, row in data["faults"].items():
        if "failed" in row and not row.get("died"):
            wrong.append(f"{name}: {row['failed']}")
        if row.get("came_out_s", 0) > ENDED_S or row.get("obeyed_s", 0) > ENDED_S:
            wrong.append(f"{name}: it took over {ENDED_S:.0f} s")
        if row.get("error", "").startswith("none") or row.get("ranks_left") or row.get("pids"):
            wrong.append(f"{name}: {_told(row)}")
        if "equal_frames" in row and (row["equal_frames"] < row["frames"] or not row["resumed_from"]):
            wrong.append(f"{name}: {_told(row)}")
    return wrong


def devices() -> tuple[int, str]:
    """Number of GPUs and the first one's name, asked in a process of its own: this one never touches CUDA."""
    code = "import torch; n = torch.cuda.device_count(); print(n, torch.cuda.get_device_name(0) if n else '')"
    made = subprocess.run(
        [sys.executable, "-c", f"{code}; print('torch', torch.__version__, 'CUDA', torch.version.cuda)"],
        capture_output=True, text=True, check=True, timeout=180,
    )  # fmt: skip
    first, second = made.stdout.splitlines()[:2]
    count, _, name = first.partition(" ")
    return int(count), f"{name}, {second}" if int(count) else second


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--shape", choices=("14b", "1.3b", "tiny"), default="14b")
    parser.add_argument("--fault-shape", choices=("14b", "1.3b", "tiny"))
    parser.add_argument("--parts", default="speed,faults")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked = parser.parse_args()
    asked.fault_shape = asked.fault_shape or ("tiny" if asked.shape == "tiny" else "1.3b")
    asked.out.mkdir(parents=True, exist_ok=True)
    results = Results(asked.out)
    count, machine = devices()
    results.data |= {"machine": machine, "device": asked.device, "shape": asked.shape}
    say(f"{count} GPUs: {machine}")
    if asked.device == "cuda" and count < 2:
        results.leave_out(
            "everything", f"one film on two GPUs needs two, and torch sees {count} here; nothing was measured"
        )
        return 0
    asked.scratch = tempfile.mkdtemp(prefix="gang-gpu-")
    bench = Bench(asked, results)
    bench._free("before")
    results.data["links"] = links()
    print(results.data["links"], flush=True)
    parts = asked.parts.split(",")
    try:
        if "speed" in parts:
            bench.speed(RESERVE_S if "faults" in parts else 0.0)
        if "faults" in parts:
            bench.faults()
    finally:
        shutil.rmtree(asked.scratch, ignore_errors=True)
        text = table(results.data, asked.shape)
        (asked.out / "table.md").write_text(text)
        results.write()
        print(text, flush=True)
    print(measured_row(results.data), flush=True)
    wrong = verdict(results.data)
    for line in wrong:
        print(f"NOT AS IT SHOULD BE: {line}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
