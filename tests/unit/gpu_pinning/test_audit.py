"""Findings on GPUs, from NVML's answers for recorded machines."""

from __future__ import annotations

import threading

import pytest

from gpu_pinning.audit import audit_gpus, await_free, orphaned_vram, why_busy_now, xid_findings
from gpu_pinning.errors import DeviceBusy
from gpu_pinning.nvml import GpuHealth, Nvml, session
from gpu_pinning.placement import make_plan
from gpu_pinning.plan import Plan
from gpu_pinning.wishes import Wishes
from tests.unit.gpu_pinning.trees import RecordedNvml, recorded

MACHINE = recorded("permuted-minors")
GIB = 1 << 30


@pytest.fixture
def module() -> RecordedNvml:
    return RecordedNvml(MACHINE)


@pytest.fixture
def nvml(module: RecordedNvml) -> Nvml:
    with session(module) as lib:
        assert isinstance(lib, Nvml)
        return lib


@pytest.fixture
def plan() -> Plan:
    return make_plan(MACHINE, Wishes.parse('[[slots]]\nname = "g"\npools = ["video"]\ngpus = 1\ncount = 2'))


def test_a_quiet_machine_has_no_findings(nvml: Nvml, plan: Plan) -> None:
    assert audit_gpus(plan, nvml, {"g-0": [10], "g-1": [20]}) == ()


def test_own_processes_are_no_strangers_but_the_neighbour_slot_s_are(
    module: RecordedNvml, nvml: Nvml, plan: Plan
) -> None:
    first = plan.slot("g-0").gpus[0]
    module.running = {first: [(10, "compute", GIB), (20, "compute", GIB), (99, "graphics", 2 * GIB)]}
    found = {f.kind: f for f in audit_gpus(plan, nvml, {"g-0": [10], "g-1": [20]})}
    assert set(found) == {"wrong-gpu", "stranger-on-gpu"}
    assert (found["wrong-gpu"].slot, found["wrong-gpu"].drains) == ("g-1", True)
    assert found["stranger-on-gpu"].found == "graphics process 99, 2048 MiB"


def test_a_gpu_that_fell_off_the_bus_drains_its_slot_and_names_the_cause(
    module: RecordedNvml, nvml: Nvml, plan: Plan
) -> None:
    module.lost = {plan.slot("g-1").gpus[0]}
    (finding,) = audit_gpus(plan, nvml, {})
    assert (finding.kind, finding.slot, finding.drains) == ("gpu-lost", "g-1", True)
    assert finding.found == "GPU is lost"


def test_only_new_ecc_errors_are_told(module: RecordedNvml, nvml: Nvml, plan: Plan) -> None:
    uuid = plan.slot("g-0").gpus[0]
    module.ecc = {uuid: 2}
    was = {uuid: GpuHealth(uuid=uuid, present=True, ecc_uncorrected=2)}
    assert audit_gpus(plan, nvml, {}, was) == ()
    module.ecc = {uuid: 3}
    (finding,) = audit_gpus(plan, nvml, {}, was)
    assert (finding.kind, finding.found, finding.drains) == ("ecc", "3 uncorrected errors", True)


@pytest.mark.parametrize("present", [None, False], ids=["the first look", "it was away a while"])
def test_old_ecc_errors_drain_nothing(
    module: RecordedNvml, nvml: Nvml, plan: Plan, present: bool | None
) -> None:
    uuid = plan.slot("g-0").gpus[0]
    module.ecc = {uuid: 2}
    was = None if present is None else {uuid: GpuHealth(uuid=uuid, present=False, cause="lost")}
    (finding,) = audit_gpus(plan, nvml, {}, was)
    assert (finding.kind, finding.found, finding.drains) == ("ecc", "2 uncorrected errors", False)


def test_throttling_is_told_but_drains_nothing(module: RecordedNvml, nvml: Nvml, plan: Plan) -> None:
    # 0x44: software power cap and hardware thermal slowdown; 0x1 (idle) is no throttling.
    module.throttle = {plan.slot("g-0").gpus[0]: 0x45}
    (finding,) = audit_gpus(plan, nvml, {})
    assert (finding.kind, finding.drains) == ("throttled", False)
    assert finding.found == "software power cap, hardware thermal slowdown"


def test_xid_lines_find_their_slot(plan: Plan) -> None:
    lines = [
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:5E:00): 13, Graphics Exception",
        "NVRM: Xid (PCI:0000:d8:00): 31, not ours",
        "usb 1-1: new device",
    ]
    found = xid_findings(lines, plan)
    assert [(f.slot, f.found, f.drains) for f in found] == [("g-0", "Xid 79", True), ("g-1", "Xid 13", False)]


def test_an_xid_of_one_mig_instance_is_its_slots_alone() -> None:
    machine = recorded("mig-box")
    text = '[[slots]]\nname = "m"\npools = ["render"]\nmig = "1g.5gb"\ncount = 2'
    plan = make_plan(machine, Wishes.parse(text))
    first, second = (
        next(m.gpu_instance for g in machine.gpus for m in g.mig if m.uuid == slot.mig) for slot in plan.slots
    )
    assert first != second
    line = f"NVRM: Xid (PCI:0000:07:00 GPU-I:{second:02d}): 43, pid=7, name=python, Ch 00000008"
    [found] = xid_findings([line], plan, machine)
    assert (found.slot, found.found, found.drains) == ("m-1", "Xid 43", False)
    # of the GPU as a whole it is everybody's
    whole = xid_findings(["NVRM: Xid (PCI:0000:07:00): 79, pid='<unknown>'"], plan, machine)
    assert [(f.slot, f.drains) for f in whole] == [("m-0", True), ("m-1", True)]


def test_memory_of_a_dead_slot_is_waited_for(module: RecordedNvml, nvml: Nvml, plan: Plan) -> None:
    slot = plan.slot("g-0")
    uuid = slot.gpus[0]
    module.running = {uuid: [(10, "compute", 30 * GIB)]}
    module.used = {uuid: 30 * GIB}

    def release() -> None:
        module.running = {}
        module.used = {uuid: 3 << 20}

    timer = threading.Timer(0.2, release)
    timer.start()
    waited = await_free(nvml, slot, 48 * GIB, [10], seconds=20)
    timer.join()
    assert waited >= 0.1


def test_memory_that_stays_names_its_holder(module: RecordedNvml, nvml: Nvml, plan: Plan) -> None:
    slot = plan.slot("g-0")
    uuid = slot.gpus[0]
    module.used = {uuid: 30 * GIB}
    with pytest.raises(DeviceBusy, match=r"30720 MiB .* no process that can be listed"):
        await_free(nvml, slot, 48 * GIB, [10], seconds=0.05)
    module.running = {uuid: [(77, "compute", 30 * GIB)]}
    with pytest.raises(DeviceBusy, match="compute process 77"):
        await_free(nvml, slot, 48 * GIB, [10], seconds=0.05)
    (orphan,) = orphaned_vram(plan, nvml, {"g-1": [20]}, {gpu.uuid: gpu.memory_bytes for gpu in MACHINE.gpus})
    assert (orphan.kind, orphan.slot) == ("orphaned-vram", "g-0")
    assert "process 77" in orphan.found


def test_a_gpu_that_cannot_be_read_is_not_free(module: RecordedNvml, nvml: Nvml, plan: Plan) -> None:
    slot = plan.slot("g-0")
    module.lost = {slot.gpus[0]}
    with pytest.raises(DeviceBusy, match="cannot be read: GPU is lost"):
        await_free(nvml, slot, 48 * GIB, [], seconds=0.05)


def test_a_mig_slot_waits_for_its_own_processes_alone() -> None:
    machine = recorded("mig-box")
    module = RecordedNvml(machine)
    slot = next(s for s in make_plan(machine).slots if s.kind == "mig")
    gpu, mig = slot.gpus[0], slot.mig or ""
    module.running = {gpu: [(5, "compute", GIB)]}
    module.used = {mig: 0}
    with session(module) as lib:
        assert isinstance(lib, Nvml)
        await_free(lib, slot, 20 * GIB, [10], seconds=0.05)
        module.running = {gpu: [(5, "compute", GIB), (10, "compute", GIB)]}
        with pytest.raises(DeviceBusy, match="process 10"):
            await_free(lib, slot, 20 * GIB, [10], seconds=0.05)


def test_a_gpu_is_looked_at_again_before_each_claim(module: RecordedNvml, nvml: Nvml) -> None:
    gpu = MACHINE.gpus[0]
    assert why_busy_now(nvml, gpu) is None
    module.running = {gpu.uuid: [(10, "compute", GIB)]}
    module.used = {gpu.uuid: GIB}
    assert "pid 10" in (why_busy_now(nvml, gpu) or "")
    assert why_busy_now(nvml, gpu, mine=[10]) is None
    module.running[gpu.uuid].append((11, "compute", GIB))
    assert "pid 11" in (why_busy_now(nvml, gpu, mine=[10]) or "")
    module.running = {}
    assert "processes that are not listed here" in (why_busy_now(nvml, gpu) or "")


def test_nvml_that_does_not_start_is_a_reason() -> None:
    with session(RecordedNvml(recorded("laptop"))) as lib:
        assert lib == "NVML does not start: NVML Shared Library Not Found"
