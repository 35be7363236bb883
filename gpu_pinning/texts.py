"""What the commands ``farm topology|plan|doctor|neighbours|node install`` print: text or JSON, and an exit
code.

Thin functions without a terminal or a command-line library, so that any front can call them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from gpu_pinning import cpulist, topology
from gpu_pinning.claims import APART, Claim, clashes
from gpu_pinning.diff import diff_plans
from gpu_pinning.discover import discover_neighbours
from gpu_pinning.doctor import DoctorFinding, examine, exit_code, live_findings, other_agents
from gpu_pinning.draw import render_diff, render_plan, table
from gpu_pinning.machine import Topology
from gpu_pinning.neighbour_seats import CORES_PER_GPU
from gpu_pinning.observed import ObservedNeighbour, fence_command
from gpu_pinning.ours import slot_processes, without_slots
from gpu_pinning.placement import make_plan
from gpu_pinning.plan import Plan, Refusal
from gpu_pinning.unit import WEIGHT, systemd_unit
from gpu_pinning.wishes import Wishes

Output = tuple[str, int]
"""Text for standard output, and the exit code."""


def the_machine(recorded: Path | None = None) -> Topology:
    """A recorded machine, or the one that we are on. Raises TopologyError."""
    return Topology.load(recorded) if recorded else topology.read()


def the_wishes(farm_toml: Path | None = None) -> Wishes:
    """``farm_toml``; without it the file that FARM_CONFIG names; without that ``farm.toml`` here, if it is
    there.

    Raises ConfigError. A file that was named has to be there.
    """
    if farm_toml is None and (named := os.environ.get("FARM_CONFIG")):
        farm_toml = Path(named)
    if farm_toml is not None:
        return Wishes.load(farm_toml)
    return Wishes.load(Path("farm.toml")) if Path("farm.toml").exists() else Wishes()


def _observed(machine: Topology, recorded: Path | None) -> tuple[ObservedNeighbour, ...]:
    return () if recorded else discover_neighbours(machine)


def topology_text(recorded: Path | None = None, *, as_json: bool = False) -> Output:
    """``farm topology``. The JSON is a recorded machine."""
    machine = the_machine(recorded)
    if as_json:
        return machine.dump(), 0
    lines = [
        f"{machine.arch}, kernel {machine.kernel.release}, "
        + ("bare metal" if machine.bare_metal else f"hypervisor {machine.hypervisor or 'not known'}")
        + (f", container {machine.container}" if machine.container else ""),
        f"CPUs {cpulist.show(machine.allowed_cpus)} of {sum(len(c.cpus) for c in machine.cores)} in "
        f"{len(machine.cores)} cores, {len({c.package for c in machine.cores})} sockets, "
        f"{len({c.llc for c in machine.cores})} last-level caches",
    ]
    for node in machine.nodes:
        cpus = cpulist.show(node.cpus) or "none"
        lines.append(f"NUMA node {node.id}: CPUs {cpus}, {node.bytes / 2**30:.0f} GiB")
    if machine.gpus:
        rows = [
            (
                gpu.pci,
                gpu.name,
                gpu.uuid,
                f"{gpu.memory_bytes / 2**30:.0f} GiB",
                "?" if gpu.node is None else str(gpu.node),
                "-" if gpu.minor is None else f"/dev/nvidia{gpu.minor}",
                f"{len(gpu.mig)} MIG" if gpu.mig_enabled else "",
            )
            for gpu in machine.gpus
        ]
        lines.append(table(rows, ("PCI", "GPU", "UUID", "MEMORY", "NODE", "FILE", "")))
    else:
        lines.append(f"No GPU: {machine.nvml}")
    granted = [f"{r.controller} (v{r.version})" for r in machine.cgroups if r.granted]
    refused = [f"{r.controller} ({r.reason})" for r in machine.cgroups if not r.granted]
    lines.append("cgroups: " + (", ".join(granted) or "none"))
    if refused:
        lines.append("no right to: " + ", ".join(refused))
    lines.append(f"device nodes fenced by: {machine.device_fence}")
    return "\n".join(lines) + "\n", 0


def plan_text(
    farm_toml: Path | None = None,
    recorded: Path | None = None,
    *,
    as_json: bool = False,
    running: Plan | None = None,
    as_diff: bool = False,
    claimed: Iterable[Claim] = (),
) -> Output:
    """``farm plan``; 1 where something was refused.

    ``running`` is the plan that runs here: what its slots have in use is free to be planned, and ``--diff``
    compares with it. ``claimed`` is what other agents give out on this machine.
    """
    machine = the_machine(recorded)
    if running is not None and recorded is None:
        machine = without_slots(machine, running.by_name, slot_processes(machine, running.by_name))
    plan = make_plan(machine, the_wishes(farm_toml), _observed(machine, recorded))
    clash = [Refusal(wish="slots", reason=text, fix=APART) for text in clashes(plan.slots, claimed, None)]
    plan = plan.model_copy(update={"refusals": (*plan.refusals, *clash)})
    code = 1 if plan.refusals else 0
    if as_diff:
        changes = diff_plans(running, plan) if running else diff_plans(_nothing(), plan)
        if as_json:
            return json.dumps([change.model_dump(mode="json") for change in changes], indent=2) + "\n", code
        return render_diff(changes), code
    return (plan.dump() if as_json else render_plan(plan, machine)), code


def _nothing() -> Plan:
    empty: dict[str, tuple[()]] = dict.fromkeys(
        ("slots", "neighbours", "sharing", "interrupts", "refusals", "in_use", "notes", "spare_cpus"), ()
    )
    return Plan.model_validate(empty)


def neighbours_text(
    *, as_json: bool = False, proc: Path = Path("/proc"), machine: Topology | None = None
) -> Output:
    """``farm neighbours discover``: servers, where they may run, and how to declare and fence them."""
    machine = machine or topology.read()
    found = discover_neighbours(machine, proc)
    if as_json:
        return json.dumps([seen.model_dump(mode="json") for seen in found], indent=2) + "\n", 0
    if not found:
        return "No language model server found among the processes that can be seen here.\n", 0
    parts = []
    names: set[str] = set()
    for seen in found:
        gpus = ", ".join(seen.gpus) or "no GPU seen"
        where = "the whole machine" if seen.whole_machine else f"CPUs {cpulist.show(seen.cpus)}"
        lines = [
            f"{seen.kind} (pid {seen.pid}, {len(seen.pids)} processes), port {seen.port}, "
            f"model {seen.model or '?'}",
            f"  GPUs: {gpus}",
            f"  may run on: {where}",
        ]
        name = f"{seen.kind.replace('.', '-')}-{seen.port}"
        if name in names:
            name += f"-{seen.pid}"  # as of two containers with a network of their own each
        names.add(name)
        if seen.whole_machine:
            plan = make_plan(machine, _declared(name, seen, machine), (seen,))
            if plan.neighbours:
                cpus = cpulist.show(plan.neighbours[0].cpus)
                lines += ["  Not fenced, so slots beside it are class C. To fence it:"]
                lines += [f"    {fence_command(cpus, seen, name)}"]
        lines += ["  For farm.toml:", *(f"    {line}" for line in _toml(name, seen, machine).splitlines())]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n", 0


def _toml(name: str, seen: ObservedNeighbour, machine: Topology) -> str:
    role = "prefill" if seen.role == "prefill" else "decode"
    lines = ["[[neighbours]]", f'name = "{name}"', f'role = "{role}"']
    if seen.gpus:
        lines.append("gpus = [" + ", ".join(f'"{uuid}"' for uuid in seen.gpus) + "]")
    if not seen.whole_machine:
        lines.append(f'cpus = "{cpulist.show(seen.cpus)}"')
    elif not seen.gpus:
        # at most half of the machine, as for a neighbour that names none
        usable = sum(not machine.allowed_set.isdisjoint(core.cpus) for core in machine.cores)
        lines.append(f"cores = {max(1, min(CORES_PER_GPU, usable // 2))}")
    lines.append(f'url = "http://127.0.0.1:{seen.port}"')
    return "\n".join(lines)


def _declared(name: str, seen: ObservedNeighbour, machine: Topology) -> Wishes:
    return Wishes.parse(_toml(name, seen, machine), "discovered")


def doctor_findings(
    farm_toml: Path | None = None,
    recorded: Path | None = None,
    more: Iterable[DoctorFinding] = (),
    folders: Iterable[Path] = (),
    claimed: Iterable[Claim] = (),
) -> tuple[DoctorFinding, ...]:
    """All findings for this machine, or those that a recorded one shows.

    ``more`` are the caller's own. ``claimed`` is what other agents give out on this machine. ``folders`` are
    looked at for free space beside those of farm.toml.
    """
    machine = the_machine(recorded)
    wishes = the_wishes(farm_toml)
    observed = _observed(machine, recorded)
    plan = make_plan(machine, wishes, observed)
    findings = examine(machine, plan, observed)
    if recorded is not None:
        return findings
    findings += other_agents(clashes(plan.slots, claimed, None))
    named = [Path(p) for p in (wishes.paths.work, wishes.paths.spool) if p]
    looked_at = dict.fromkeys([*named, *folders])
    return (*findings, *live_findings(machine, looked_at), *more)


def doctor_text(
    farm_toml: Path | None = None,
    recorded: Path | None = None,
    more: Iterable[DoctorFinding] = (),
    *,
    as_json: bool = False,
    folders: Iterable[Path] = (),
    claimed: Iterable[Claim] = (),
) -> Output:
    """``farm doctor``: 0 where nothing is worse than a note, 1 with warnings, 2 where something is bad."""
    findings = doctor_findings(farm_toml, recorded, more, folders, claimed)
    code = exit_code(findings)
    if as_json:
        return json.dumps([f.model_dump(mode="json") for f in findings], indent=2) + "\n", code
    lines = []
    for finding in findings:
        lines.append(f"[{finding.level:4}] {finding.what}")
        if finding.level != "ok":
            lines += [f"       effect: {finding.effect}"] if finding.effect else []
            lines += [f"       mend:   {finding.mend}"] if finding.mend else []
    return "\n".join(lines) + "\n", code


def unit_text(farm_toml: Path | None = None, *, user: str | None = None, farm: str | None = None) -> Output:
    """``farm node install``: the systemd unit. ``farm`` is the command's path, else the one that runs now.

    The unit weighs little, unless farm.toml has neighbours whose servers the agent runs inside it.
    """
    wishes = Wishes.load(farm_toml) if farm_toml and farm_toml.exists() else Wishes()
    hosts = any(neighbour.command for neighbour in wishes.neighbours)
    program = farm or str(Path(sys.argv[0]).resolve())
    environment = {"FARM_CONFIG": str(farm_toml.resolve())} if farm_toml else {}
    return (
        systemd_unit(
            [program, "node"],
            user=user,
            environment=environment,
            environment_file="/etc/stillframe/node.env",
            weight=None if hosts else WEIGHT,
        ),
        0,
    )
