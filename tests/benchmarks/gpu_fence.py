"""Slots that stay in their fence, for real: ``python3 tests/benchmarks/gpu_fence.py --out DIR``.

Plans this machine, puts up every fence, runs 200 tasks in long-lived slot processes that each report where
they really ran, compares with NVML's process lists, then kills each GPU slot in the middle of a task and
times until its video memory is seen free and the slot answers again. Any number of GPUs. Needs Python, torch
and gpu_pinning's dependencies; takes a few minutes at most.

Writes ``report.json`` and ``topology.json`` (a recorded machine). Exit codes: 0 everything held; 1 something
was outside its fence or too slow; 3 nothing was wrong, but parts could not be run here, which the report
names.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpu_pinning import (  # noqa: E402 - the script is run by its path
    Fence,
    Nvml,
    PinningError,
    Plan,
    SlotPlan,
    Topology,
    Wishes,
    audit_gpus,
    audit_slot,
    await_free,
    make_plan,
    nvml_session,
    read_topology,
)

KILLED_TO_READY_S = 3.0
HOLD_BYTES = 2 << 30


class Report:
    """What held, what did not, and what could not be run."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.not_run: list[str] = []
        self.figures: dict[str, Any] = {}

    def expect(self, ok: bool, what: str) -> None:
        """Note a violation where ``ok`` is false."""
        if not ok:
            self.violations.append(what)

    @property
    def code(self) -> int:
        """The exit code."""
        return 1 if self.violations else 3 if self.not_run else 0


class Slot:
    """A slot process behind its fence."""

    def __init__(self, machine: Topology, plan: SlotPlan, folder: Path) -> None:
        self.plan = plan
        self.fence = Fence.create(machine, plan, folder)
        self.fence.apply()
        self.log = (folder / f"{plan.name}.log").open("wb")
        self.start()

    def start(self) -> None:
        """Start (again), and wait for the launcher."""
        argv = [sys.executable, str(Path(__file__).with_name("fence_slot.py"))]
        self.process = subprocess.Popen(
            self.fence.command(argv),
            env={**os.environ, **self.fence.environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.launched = self.fence.await_launch(self.process.pid)

    def send(self, **request: Any) -> None:
        """Send a request; the answer is read later, so that slots work side by side."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The next answer. Raises PinningError where the slot ended."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            tail = Path(self.log.name).read_text(errors="replace")[-800:]
            raise PinningError(f"slot {self.plan.name} ended with {self.process.wait()}: {tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the slot and take down its fence."""
        with contextlib.suppress(PinningError):
            self.fence.kill(self.process.pid)
        self.process.wait()
        self.log.close()
        self.fence.remove()


def choose_plan(machine: Topology, report: Report) -> Plan:
    """The default plan; where that takes no GPU although there are some, one that names them."""
    plan = make_plan(machine)
    report.figures["default_plan_gpu_slots"] = sum(slot.kind != "cpu" for slot in plan.slots)
    if machine.gpus and not any(slot.gpus for slot in plan.slots):
        report.figures["gpus_left_alone_by_default"] = [used.reason for used in plan.in_use]
        text = "\n".join(
            f'[[slots]]\nname = "gpu-{i}"\npools = ["video"]\ngpus = ["{gpu.uuid}"]\ncores = 2'
            for i, gpu in enumerate(machine.gpus)
        )
        text += '\n[[slots]]\nname = "cpu"\npools = ["render", "encode"]\ncores = 2\ncount = "all"\n'
        plan = make_plan(machine, Wishes.parse(text))
    for refusal in plan.refusals:
        report.expect(False, f"refused: {refusal.wish}: {refusal.reason}")
    # Enough CPU slots to show it, few enough to start quickly.
    cpu_slots = [slot for slot in plan.slots if slot.kind == "cpu"][:4]
    kept = tuple(slot for slot in plan.slots if slot.kind != "cpu" or slot in cpu_slots)
    return plan.model_copy(update={"slots": kept})


def check(slot: SlotPlan, answer: dict[str, Any], machine: Topology, report: Report) -> None:
    """One task's answer against the plan."""
    who = f"task {answer['task']} in {slot.name}"
    own = set(slot.cpus)
    report.expect(
        set(answer["cpus"]) <= own, f"{who}: threads may run on {answer['cpus']}, planned {slot.cpus}"
    )
    report.expect(set(answer["ran_on"]) <= own, f"{who}: ran on CPUs {answer['ran_on']}, planned {slot.cpus}")
    if answer["node"] is not None and slot.nodes:
        report.expect(
            answer["node"] in slot.nodes, f"{who}: memory on node {answer['node']}, planned {slot.nodes}"
        )
    report.expect(
        answer["visible"] == slot.environment["CUDA_VISIBLE_DEVICES"], f"{who}: sees {answer['visible']!r}"
    )
    if slot.kind == "cpu":
        report.expect(not answer["opens"], f"{who}: opened {answer['opens']}")
        report.expect(
            not isinstance(answer["cuda"], list) or not answer["cuda"], f"{who}: CUDA {answer['cuda']}"
        )
        report.expect(
            not isinstance(answer["nvml"], int) or answer["nvml"] == 0, f"{who}: NVML {answer['nvml']}"
        )
        return
    report.expect(isinstance(answer["cuda"], list), f"{who}: no CUDA: {answer['cuda']}")
    if isinstance(answer["cuda"], list):
        seen = {(device["uuid"], device["pci"]) for device in answer["cuda"]}
        wanted = set(zip(slot.gpus, slot.pci, strict=True))
        report.expect(seen == wanted, f"{who}: CUDA shows {sorted(seen)}, planned {sorted(wanted)}")
    foreign = {node.path for node in slot.deny} & set(answer["opens"])
    report.expect(not foreign, f"{who}: opened {sorted(foreign)}")


def run_tasks(slots: list[Slot], total: int, machine: Topology, report: Report) -> None:
    """``total`` tasks, a round at a time, one per slot."""
    began = time.monotonic()
    done: dict[str, int] = {slot.plan.name: 0 for slot in slots}
    nodes: set[Any] = set()
    for first in range(0, total, len(slots)):
        busy = slots[: min(len(slots), total - first)]
        for number, slot in enumerate(busy):
            slot.send(do="task", task=first + number)
        for slot in busy:
            answer = slot.receive()
            check(slot.plan, answer, machine, report)
            done[slot.plan.name] += 1
            nodes.add(answer["node"])
    report.figures |= {"tasks": done, "tasks_total": sum(done.values()), "tasks_s": time.monotonic() - began}
    if None in nodes:
        report.not_run.append("memory node of a page (get_mempolicy is refused here)")


def compare_with_nvml(plan: Plan, slots: list[Slot], nvml: Nvml, report: Report) -> None:
    """NVML's own lists: each GPU slot on its GPU, nobody else, and no slot anywhere else."""
    members = {slot.plan.name: slot.fence.pids(slot.process.pid) for slot in slots}
    lists = {gpu: nvml.processes(gpu) for slot in plan.slots for gpu in slot.gpus}
    pids = {pid for own in members.values() for pid in own}
    if any(listed is None for listed in lists.values()) or not any(
        process.pid in pids for listed in lists.values() for process in listed or ()
    ):
        report.not_run.append(
            f"comparison with NVML's process lists: it lists {lists} and our pids are not in it"
        )
        return
    for slot in slots:
        for gpu, listed in lists.items():
            there = {process.pid for process in listed or ()} & set(members[slot.plan.name])
            if gpu in slot.plan.gpus:
                report.expect(bool(there), f"{slot.plan.name}: NVML does not list it on its own {gpu}")
            else:
                report.expect(not there, f"{slot.plan.name}: NVML lists {there} on {gpu}")
    for finding in audit_gpus(plan, nvml, members):
        if finding.kind != "throttled":
            report.expect(False, f"audit: {finding.kind} {finding.slot}: {finding.found}")
    report.figures["nvml_lists"] = {gpu: [p.pid for p in listed or ()] for gpu, listed in lists.items()}


def kill_and_restart(slot: Slot, machine: Topology, nvml: Nvml | None, report: Report) -> None:
    """Kill in the middle of a task; the GPU is leased again only when its memory is seen free."""
    slot.send(do="hold", task="hold", bytes=HOLD_BYTES if slot.plan.gpus else 0)
    slot.receive()
    dead = slot.fence.pids(slot.process.pid)
    row: dict[str, Any] = {}
    if nvml and slot.plan.gpus:
        row["vram_held_mib"] = [(nvml.memory_used(gpu) or 0) >> 20 for gpu in slot.plan.gpus]
        report.expect(
            all(mib >= HOLD_BYTES >> 20 for mib in row["vram_held_mib"][:1]),
            f"{slot.plan.name}: held memory was not seen before the kill ({row['vram_held_mib']} MiB)",
        )
    began = time.monotonic()
    slot.fence.kill(slot.process.pid)
    slot.process.wait()
    row["killed_s"] = time.monotonic() - began
    if nvml and slot.plan.gpus:
        size = machine.gpu(slot.plan.gpus[0]).memory_bytes
        await_free(nvml, slot.plan, size, dead, seconds=30)
        row["vram_free_s"] = time.monotonic() - began
    slot.start()
    slot.send(do="ping")
    slot.receive()
    row["ready_s"] = time.monotonic() - began
    slot.send(do="task", task="after restart")
    check(slot.plan, slot.receive(), machine, report)
    row["first_task_done_s"] = time.monotonic() - began
    report.figures.setdefault("killed_to_ready", {})[slot.plan.name] = row
    report.expect(
        row["ready_s"] < KILLED_TO_READY_S, f"{slot.plan.name}: killed to ready took {row['ready_s']:.2f} s"
    )


def run(out: Path, total: int) -> int:
    """Everything; returns the exit code."""
    report = Report()
    began = time.monotonic()
    machine = read_topology()
    report.figures["topology_s"] = time.monotonic() - began
    (out / "topology.json").write_text(machine.dump(), encoding="utf-8")
    began = time.monotonic()
    plan = choose_plan(machine, report)
    report.figures["plan_s"] = time.monotonic() - began
    report.figures["device_fence"] = machine.device_fence
    report.figures["cgroups"] = {
        r.controller: f"v{r.version}" if r.granted else r.reason for r in machine.cgroups
    }
    if not machine.gpus:
        report.not_run.append(f"everything that needs an NVIDIA GPU: {machine.nvml}")
    elif machine.device_fence == "none":
        report.violations.append("device nodes: not fenced, since this machine gives no right for it")
    if len(machine.gpus) == 1:
        report.not_run.append("separation of two GPUs: this machine has one")
    nodes = [node.path for node in machine.device_nodes if node.path.startswith("/dev/nvidia")]
    report.figures["device_nodes"] = nodes
    from_outside = [path for path in nodes if _opens(path)]
    report.figures["device_nodes_that_open_outside"] = from_outside
    if machine.gpus and not from_outside:
        report.not_run.append(
            "that the fence is what keeps device nodes shut: they do not open outside it either"
        )
    with tempfile.TemporaryDirectory() as folder, nvml_session() as lib:
        nvml = lib if isinstance(lib, Nvml) else None
        slots: list[Slot] = []
        try:
            for slot in plan.slots:
                slots.append(Slot(machine, slot, Path(folder)))
            report.figures["launch"] = {
                s.plan.name: {row.what: row.found for row in s.launched if row.what != "cgroup"}
                for s in slots
            }
            for slot_ in slots:
                for row in slot_.launched:
                    report.expect(
                        row.ok or row.what == "ionice",
                        f"{slot_.plan.name}: {row.what}: {row.found} {row.error}",
                    )
            run_tasks(slots, total, machine, report)
            for slot_ in slots:
                for finding in audit_slot(slot_.fence, slot_.process.pid):
                    report.expect(False, f"audit: {finding.kind} {finding.subject}: {finding.found}")
                opened = slot_.fence.try_devices()
                report.expect(not opened, f"{slot_.plan.name}: from inside {opened}")
            if nvml and machine.gpus:
                compare_with_nvml(plan, slots, nvml, report)
            for slot_ in [s for s in slots if s.plan.gpus] + [s for s in slots if not s.plan.gpus][:1]:
                kill_and_restart(slot_, machine, nvml, report)
        except PinningError as error:
            report.violations.append(f"stopped: {error}")
        finally:
            for slot_ in slots:
                slot_.close()
    result = {
        "verdict": {0: "held", 1: "violated", 3: "incomplete"}[report.code],
        "violations": report.violations,
        "not_run": report.not_run,
        "figures": report.figures,
        "plan": plan.model_dump(mode="json"),
    }
    (out / "report.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    shown = {key: result[key] for key in ("verdict", "violations", "not_run", "figures")}
    print(json.dumps(shown, indent=1))
    return report.code


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for report.json and topology.json")
    parser.add_argument("--tasks", type=int, default=200)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    return run(chosen.out, chosen.tasks)


if __name__ == "__main__":
    sys.exit(main())
