"""Slots that stay in their fence, on a machine with two NVIDIA GPUs: one call of a few minutes.

``python -m tests.benchmarks.two_gpus --out DIR`` prints what ``farm plan`` and ``farm doctor`` say,
runs the whole farm (:mod:`tests.benchmarks.gpu_farm`) and then bare slots beside NVML's own process lists
(:mod:`tests.benchmarks.gpu_fence`), and adds what only several GPUs can show: which slots reported which GPU.
Writes ``plan.txt``, ``doctor.txt``, ``farm.json``, ``report.json``, ``topology.json`` and ``two_gpus.json``.

Exit codes: 0 everything held; 1 something did not; 3 nothing was wrong, but this machine has fewer than two
GPUs, or something else could not be run; the report names it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from gpu_pinning import Wishes, make_plan, read_topology, render_plan
from gpu_pinning.texts import doctor_text
from tests.benchmarks import gpu_farm, gpu_fence
from tests.benchmarks.gpu_fence import Report


def leases(figures: dict[str, Any], wanted: int) -> list[str]:
    """What is wrong with the GPUs that slots reported: each belongs to one slot, and all were used."""
    owners: dict[str, set[str]] = {}
    for name, device in figures.get("slots", {}).items():
        for uuid in device.get("gpus", []):
            owners.setdefault(uuid, set()).add(name)
    faults = [f"{uuid} is leased to {sorted(names)}" for uuid, names in owners.items() if len(names) > 1]
    worked = {name for name, count in figures.get("tasks", {}).items() if count}
    idle = sorted(uuid for uuid, names in owners.items() if not names & worked)
    faults += [f"no task ran on {uuid}" for uuid in idle]
    if len(owners) < wanted:
        faults.append(f"{len(owners)} of {wanted} GPUs had a slot")
    return faults


def run(out: Path, total: int) -> int:
    """Everything; returns the exit code."""
    machine = read_topology()
    wishes = Wishes.parse(gpu_farm.choose(machine, Report()))
    (out / "plan.txt").write_text(render_plan(make_plan(machine, wishes), machine), encoding="utf-8")
    (out / "doctor.txt").write_text(doctor_text()[0], encoding="utf-8")
    print((out / "plan.txt").read_text(), (out / "doctor.txt").read_text(), sep="\n")
    codes = {"farm": gpu_farm.run(out, total), "fence": gpu_fence.run(out, total)}
    farm = json.loads((out / "farm.json").read_text())
    report: dict[str, Any] = {"gpus": [gpu.uuid for gpu in machine.gpus], "codes": codes}
    report["faults"] = leases(farm["figures"], len(machine.gpus)) if len(machine.gpus) > 1 else []
    report["not_run"] = sorted({*farm["not_run"], *json.loads((out / "report.json").read_text())["not_run"]})
    if len(machine.gpus) < 2:
        report["not_run"].append(f"slots on two GPUs: this machine has {len(machine.gpus)}")
    (out / "two_gpus.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(json.dumps(report, indent=1))
    if 1 in codes.values() or report["faults"]:
        return 1
    return 3 if report["not_run"] else 0


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the reports")
    parser.add_argument("--tasks", type=int, default=200)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    return run(chosen.out, chosen.tasks)


if __name__ == "__main__":
    sys.exit(main())
