"""The whole farm on this machine, its slots in their places.

``python -m tests.benchmarks.gpu_farm --out DIR``: SQLite, the embedded broker, the real scheduler and agent.
GPU slots and CPU slots behind their fences run 200 tasks that each report UUID, PCI address, cores and memory
node they really ran on. Then a slot of each sort is killed in the middle of a task, a GPU slot while it holds
video memory, and it is timed until the slot is ready again and until its task runs again. Any number of GPUs.

Writes ``farm.json`` and ``topology.json`` (a recorded machine). Exit codes as ``gpu_fence``: 0 everything
held; 1 something was outside its fence or too slow; 3 nothing was wrong, but parts could not be run here.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from farm.broker.embedded import EmbeddedBroker
from farm.db import migrate
from farm.settings import Settings
from gpu_pinning import Nvml, Plan, Topology, Wishes, make_plan, nvml_session, read_topology
from tests.benchmarks.gpu_fence import HOLD_BYTES, KILLED_TO_READY_S, ROOT, Report, check
from tests.chaos.farm_under_test import until
from tests.integration.workers.placed_farm import PlacedFarm

MOST_CPU_SLOTS = 6
KILLS = 3
GPU_KILLS = 2


def choose(machine: Topology, report: Report) -> str:
    """farm.toml for this machine: the default's GPU slots, or GPUs by name where the default takes none."""
    default = make_plan(machine)
    report.figures["default_plan_gpu_slots"] = sum(slot.kind != "cpu" for slot in default.slots)
    if default.in_use:
        report.figures["gpus_left_alone_by_default"] = [used.reason for used in default.in_use]
    gpu = '[[slots]]\nname = "gpu"\npools = ["video"]\ngpus = 1\ncount = "all"\n' if machine.gpus else ""
    if machine.gpus and not any(slot.gpus for slot in default.slots):
        gpu = "".join(
            f'[[slots]]\nname = "gpu-{i}"\npools = ["video"]\ngpus = ["{g.uuid}"]\ncores = 2\n'
            for i, g in enumerate(machine.gpus)
        )
    free = len(machine.cores) - 4 * len(machine.gpus)
    count = max(1, min(MOST_CPU_SLOTS, free // 2))
    cores = 2 if len(machine.cores) > 2 else 1
    return gpu + f'[[slots]]\nname = "cpu"\npools = ["render"]\ncores = {cores}\ncount = {count}\n'


def run_tasks(farm: PlacedFarm, plan: Plan, machine: Topology, total: int, report: Report) -> None:
    """``total`` tasks over all pools, each checked against the plan of the slot that ran it."""
    gpu_slots = sum(bool(slot.gpus) for slot in plan.slots)
    shares = {"render": total - total // 4 * bool(gpu_slots), "video": total // 4 * bool(gpu_slots)}
    began = time.monotonic()
    names = {row.id: row.name for row in farm.slot_rows()}
    done: dict[str, int] = {}
    nodes: set[Any] = set()
    again: list[str] = []
    jobs = [
        farm.submit({"name": pool, "pool": pool, "tasks": number, "do": {"place": True}})
        for pool, number in shares.items()
        if number
    ]
    for job in jobs:
        farm.wait_job(job, seconds=150)
        for task in farm.tasks(job):
            attempts = farm.attempts(task.id)
            slots = {attempt.number: names[attempt.slot_id] for attempt in attempts}
            again += [f"{a.state}: {a.error}" for a in attempts[:-1]]
            for number, _, _, words in farm.said(task.id, "place "):
                name = slots[number]
                answer = json.loads(words.removeprefix("place ")) | {"task": task.position}
                check(plan.slot(name), answer, machine, report)
                done[name] = done.get(name, 0) + 1
                nodes.add(answer["node"])
    report.figures["attempts_beyond_the_first"] = again
    report.figures |= {"tasks": done, "tasks_total": sum(done.values()), "tasks_s": time.monotonic() - began}
    if None in nodes:
        report.not_run.append("memory node of a page (get_mempolicy is refused here)")


def kill_and_await(farm: PlacedFarm, pool: str, hold: int, nvml: Nvml | None, plan: Plan) -> dict[str, Any]:
    """Kill the slot in the middle of a task; seconds until it is ready, and until the task runs again."""
    told = {"place": True, "hold_vram": hold, "frame_s": 600.0}
    job = farm.submit({"name": "hold", "pool": pool, "frames": 1, "max_retries": 3, "do": told})
    [task] = farm.tasks(job)
    farm.wait_said(task.id, "place ")
    pid = farm.slot_pid(task.id)
    row = next(row for row in farm.slot_rows() if row.pid == pid)
    found: dict[str, Any] = {"slot": row.name}
    if nvml is not None and hold:
        found["vram_held_mib"] = [(nvml.memory_used(uuid) or 0) >> 20 for uuid in plan.slot(row.name).gpus]
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    until(lambda: farm.slot(row.name).pid not in (None, pid), f"{row.name} is ready again")
    found["ready_s"] = time.monotonic() - began
    farm.wait_said(task.id, "place ", 2)
    found["task_runs_again_s"] = time.monotonic() - began
    from farm.lifecycle.commands import cancel_job

    with farm.db.write() as conn:
        cancel_job(conn, job)
    farm.wake_nodes()
    farm.wait_job(job, "cancelled")
    return found


def run(out: Path, total: int) -> int:
    """Everything; returns the exit code."""
    report = Report()
    machine = read_topology()
    (out / "topology.json").write_text(machine.dump(), encoding="utf-8")
    text = choose(machine, report)
    plan = make_plan(machine, Wishes.parse(text))
    for refusal in plan.refusals:
        report.expect(False, f"refused: {refusal.wish}: {refusal.reason}")
    report.figures["device_fence"] = machine.device_fence
    if not machine.gpus:
        report.not_run.append(f"everything that needs an NVIDIA GPU: {machine.nvml}")
    if len(machine.gpus) == 1:
        report.not_run.append("separation of two GPUs: this machine has one")
    with tempfile.TemporaryDirectory(prefix="stillframe-gpu-farm-") as folder, nvml_session() as lib:
        nvml = lib if isinstance(lib, Nvml) else None
        broker = EmbeddedBroker(Path(folder) / "broker")
        url = f"sqlite:///{folder}/farm.sqlite3"
        migrate.upgrade(url)
        try:
            settings = Settings(
                data=Path(folder) / "farm", database_url=url, broker_url=broker.start(), free_space_floor=1
            )
            paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
            farm = PlacedFarm(settings, slots=len(plan.slots), environment={"PYTHONPATH": paths})
            farm.node_toml = text
            with farm:
                kept = Plan.parse(json.dumps(farm.kept_plan()))
                report.expect(
                    {s.name: s.cpus for s in kept.slots} == {s.name: s.cpus for s in plan.slots},
                    "the agent planned something else",
                )
                run_tasks(farm, kept, machine, total, report)
                kills = [kill_and_await(farm, "render", 0, nvml, kept) for _ in range(KILLS)]
                if any(slot.gpus for slot in kept.slots):
                    kills += [kill_and_await(farm, "video", HOLD_BYTES, nvml, kept) for _ in range(GPU_KILLS)]
                report.figures["kills"] = kills
                for kill in kills:
                    report.expect(
                        kill["ready_s"] < KILLED_TO_READY_S,
                        f"{kill['slot']}: killed to ready took {kill['ready_s']:.2f} s",
                    )
                time.sleep(1.5)
                report.figures["slots"] = {row.name: row.device for row in farm.slot_rows()}
                for row in farm.slot_rows():
                    report.expect(
                        "not fenced" not in row.device.get("labels", []),
                        f"{row.name}: {row.device.get('label_reasons')}",
                    )
                for event in farm.events("slot.audit"):
                    for finding in event["findings"]:
                        if finding["kind"] != "throttled":
                            report.expect(False, f"audit: {finding}")
        except AssertionError as error:
            report.violations.append(f"stopped: {str(error)[:2000]}")
        except Exception as error:  # what was measured before is worth keeping
            report.violations.append("stopped: " + "".join(traceback.format_exception(error))[-3000:])
        finally:
            broker.stop()
    result = {
        "verdict": {0: "held", 1: "violated", 3: "incomplete"}[report.code],
        "violations": report.violations,
        "not_run": report.not_run,
        "figures": report.figures,
    }
    (out / "farm.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(json.dumps(result, indent=1))
    return report.code


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for farm.json and topology.json")
    parser.add_argument("--tasks", type=int, default=200)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    return run(chosen.out, chosen.tasks)


if __name__ == "__main__":
    sys.exit(main())
