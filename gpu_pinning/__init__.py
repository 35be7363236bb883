"""Who sits where on a machine, and proof that they stay there.

The whole public surface, in the order of use::

    machine = read_topology()                          # or Topology.load(recorded)
    wishes = Wishes.load(path)                         # farm.toml; Wishes() for none
    seen = discover_neighbours(machine)
    plan = make_plan(machine, wishes, seen)            # pure
    print(render_plan(plan, machine))
    changes = diff_plans(running, plan)                # what a rolling drain applies

    fence = Fence.create(machine, plan.slot("gpu-0"), run_dir)
    fence.clear(); fence.apply()                       # groups, limits, device rules
    child = Popen(fence.command(argv), env={**os.environ, **fence.environment()})
    fence.await_launch(child.pid)                      # then again for each restart: command, await_launch
    findings = audit_slot(fence, child.pid)            # fence.read_back() row by row
    fence.freeze(child.pid); fence.thaw(child.pid)
    fence.kill(child.pid); await_free(nvml, slot, size, dead_pids); fence.remove()

Nothing here imports anything of Stillframe's other packages, and NVML is loaded at the first use only.
"""

from gpu_pinning import procfs
from gpu_pinning.audit import (
    Finding,
    audit_gpus,
    audit_slot,
    await_free,
    kernel_log,
    orphaned_vram,
    why_busy_now,
    xid_findings,
)
from gpu_pinning.board import busy_reason
from gpu_pinning.claims import Claims
from gpu_pinning.diff import Change, diff_plans
from gpu_pinning.discover import discover_neighbours
from gpu_pinning.doctor import DoctorFinding, examine, exit_code, live_findings
from gpu_pinning.draw import render_diff, render_drawing, render_plan, render_table
from gpu_pinning.errors import (
    Claimed,
    ConfigError,
    DeviceBusy,
    FenceError,
    KillRefused,
    MigError,
    PinningError,
    TopologyError,
)
from gpu_pinning.fence import Fence
from gpu_pinning.group import Setting, SlotGroup, prepare_delegation
from gpu_pinning.irq_moves import move_interrupts
from gpu_pinning.machine import Gpu, Topology
from gpu_pinning.nvml import GpuHealth, Nvml, session
from gpu_pinning.observed import ObservedNeighbour
from gpu_pinning.ours import slot_processes, without_slots
from gpu_pinning.placement import make_plan
from gpu_pinning.plan import NeighbourPlan, Plan, Refusal, Sharing, SlotPlan
from gpu_pinning.topology import read as read_topology
from gpu_pinning.unit import systemd_unit
from gpu_pinning.wishes import NeighbourWish, SlotWish, Wishes

run_doctor = examine
nvml_session = session

__all__ = [
    "Change",
    "Claimed",
    "Claims",
    "ConfigError",
    "DeviceBusy",
    "DoctorFinding",
    "Fence",
    "FenceError",
    "Finding",
    "Gpu",
    "GpuHealth",
    "KillRefused",
    "MigError",
    "NeighbourPlan",
    "NeighbourWish",
    "Nvml",
    "ObservedNeighbour",
    "PinningError",
    "Plan",
    "Refusal",
    "Setting",
    "Sharing",
    "SlotGroup",
    "SlotPlan",
    "SlotWish",
    "Topology",
    "TopologyError",
    "Wishes",
    "audit_gpus",
    "audit_slot",
    "await_free",
    "busy_reason",
    "diff_plans",
    "discover_neighbours",
    "examine",
    "exit_code",
    "kernel_log",
    "live_findings",
    "make_plan",
    "move_interrupts",
    "nvml_session",
    "orphaned_vram",
    "prepare_delegation",
    "procfs",
    "read_topology",
    "render_diff",
    "render_drawing",
    "render_plan",
    "render_table",
    "run_doctor",
    "slot_processes",
    "systemd_unit",
    "why_busy_now",
    "without_slots",
    "xid_findings",
]
