"""Findings with effect and mending command, and exit codes."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from gpu_pinning.doctor import DoctorFinding, examine, exit_code, live_findings, torch_build, torch_finding
from gpu_pinning.placement import make_plan
from gpu_pinning.sysfs import read_kernel
from gpu_pinning.texts import doctor_text
from gpu_pinning.wishes import Wishes
from tests.unit.gpu_pinning.trees import RECORDED, put, recorded


def by_check(findings: tuple[DoctorFinding, ...]) -> dict[str, DoctorFinding]:
    return {finding.check: finding for finding in findings}


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("*.json")))
def test_whatever_is_warned_of_has_an_effect_and_a_cure(name: str) -> None:
    machine = recorded(name)
    findings = examine(machine, make_plan(machine))
    for finding in findings:
        if finding.level in ("warn", "bad"):
            assert finding.effect and finding.mend, finding


def test_a_well_kept_machine_is_well() -> None:
    machine = recorded("hgx-8gpu")
    text = '[[neighbours]]\nname = "n"\ngpus = ["19:00.0"]\ncores = "128-159,384-415"'
    findings = examine(machine, make_plan(machine, Wishes.parse(text)))
    checks = ("bare-metal", "cgroups", "device-fence", "governor")
    assert [f.level for f in findings if f.check in checks] == ["ok"] * 4


@pytest.mark.parametrize(
    ("name", "check", "level", "word"),
    [
        ("virtual-machine", "bare-metal", "warn", "pin the guest"),
        ("virtual-machine", "hugepages", "note", "echo madvise"),
        ("container", "container", "note", "--pid=host"),
        ("container", "cgroup-cpuset", "warn", "farm node install"),
        ("container", "device-fence", "warn", "user namespaces"),
        ("laptop", "governor", "warn", "cpupower frequency-set -g performance"),
        ("workstation", "governor", "warn", "cpupower"),
        ("hgx-8gpu", "smt", "note", "smt/control"),
    ],
)
def test_what_harms_is_found(name: str, check: str, level: str, word: str) -> None:
    finding = by_check(examine(recorded(name)))[check]
    assert finding.level == level
    assert word in finding.mend


def test_numa_balancing_is_found_where_there_are_nodes() -> None:
    machine = recorded("cxl-box")
    kernel = machine.kernel.model_copy(update={"numa_balancing": True})
    finding = by_check(examine(machine.model_copy(update={"kernel": kernel})))["numa-balancing"]
    assert (finding.level, finding.mend) == ("warn", "sysctl -w kernel.numa_balancing=0")


@pytest.mark.parametrize(
    ("files", "have", "level", "word"),
    [
        ({"sys/fs/resctrl/info/MB/min_bandwidth": "10"}, "ready", "note", "schemata"),
        ({"proc/cpuinfo": "flags\t\t: fpu mba", "proc/filesystems": "nodev\tresctrl"},
         "not mounted", "note", "mount -t resctrl"),
        ({"proc/cpuinfo": "flags\t\t: fpu mba", "proc/filesystems": "nodev\tsysfs"},
         "not in kernel", "note", "CONFIG_X86_CPU_RESCTRL"),
        ({"proc/cpuinfo": "flags\t\t: fpu sse2"}, "none", "ok", ""),
    ],
)  # fmt: skip
def test_it_is_said_whether_memory_bandwidth_can_be_limited(
    tmp_path: Path, files: dict[str, str], have: str, level: str, word: str
) -> None:
    for path, text in files.items():
        put(tmp_path, path, text)
    kernel = read_kernel(tmp_path)
    assert kernel.bandwidth_limits == have
    finding = by_check(examine(recorded("laptop").model_copy(update={"kernel": kernel})))["memory-bandwidth"]
    assert finding.level == level and word in finding.mend


def test_a_processor_that_tells_no_flags_is_not_judged(tmp_path: Path) -> None:
    kernel = read_kernel(tmp_path)
    machine = recorded("laptop").model_copy(update={"kernel": kernel})
    assert "memory-bandwidth" not in by_check(examine(machine))


def test_an_unfenced_neighbour_and_its_interrupts_are_found() -> None:
    machine = recorded("hgx-8gpu")
    text = '[[neighbours]]\nname = "n"\ngpus = ["19:00.0"]\ncores = 4'
    found = by_check(examine(machine, make_plan(machine, Wishes.parse(text))))
    assert "AllowedCPUs=0-3,256-259" in found["neighbour-fence"].mend
    assert "smp_affinity_list" in found["interrupts"].mend
    assert found["sharing"].level == "warn"


@pytest.mark.parametrize(
    ("version", "driver", "level"),
    [
        ("2.11.0+cu130", "580.159.03", "ok"),
        ("2.11.0+cu130", "570.86.15", "bad"),
        ("2.6.0+cu124", "535.104.05", "ok"),
        ("2.6.0+cu118", "440.33.01", "bad"),
        ("2.11.0+cpu", "580.159.03", "bad"),
        ("2.11.0", "580.159.03", "note"),
        (None, "580.159.03", "note"),
    ],
)
def test_driver_and_torch_must_match(version: str | None, driver: str, level: str) -> None:
    machine = recorded("pcie-4gpu").model_copy(update={"driver": driver})
    assert torch_finding(machine, version).level == level


def test_endpoints_are_dialled(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        good = live_findings(recorded("laptop"), (), [("broker", f"redis://127.0.0.1:{port}/0")])
        assert by_check(good)["broker"].level == "ok"
    dead = live_findings(
        recorded("laptop"), (), [("database", f"postgresql+psycopg://u@127.0.0.1:{port}/farm")]
    )
    assert by_check(dead)["database"].level == "bad"
    assert f"127.0.0.1:{port}" in by_check(dead)["database"].what
    gone = live_findings(recorded("laptop"), (), [("broker", f"unix://{tmp_path}/redis.sock")])
    assert by_check(gone)["broker"].level == "bad"


def test_space_and_the_absence_of_torch_imports(tmp_path: Path) -> None:
    found = by_check(live_findings(recorded("laptop"), [tmp_path / "not" / "there"]))
    assert found["space"].what.startswith(str(tmp_path))
    assert "torch" not in sys.modules or found["torch"].level in ("ok", "note", "bad")


def test_exit_codes() -> None:
    def finding(level: str) -> DoctorFinding:
        return DoctorFinding(check="x", level=level, what="x")  # type: ignore[arg-type]

    assert exit_code([]) == exit_code([finding("ok"), finding("note")]) == 0
    assert exit_code([finding("note"), finding("warn")]) == 1
    assert exit_code([finding("bad"), finding("warn")]) == 2


def test_text_and_json_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FARM_CONFIG", raising=False)
    recording = RECORDED / "container.json"
    text, code = doctor_text(recorded=recording)
    listed, same = doctor_text(recorded=recording, as_json=True)
    assert code == same == 1
    assert all(item["what"] in text for item in json.loads(listed))


@pytest.mark.parametrize(
    ("version", "text", "build"),
    [
        ("2.11.0", "__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n", "2.11.0+cu130"),
        ("2.11.0", "__version__ = '2.11.0'\ncuda: Optional[str] = '12.8'\n", "2.11.0+cu128"),
        ("2.13.0+cpu", "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", "2.13.0+cpu"),
        ("2.13.0", "something else\n", "2.13.0"),
    ],
)
def test_the_build_of_torch_is_read_from_its_files(version: str, text: str, build: str) -> None:
    assert torch_build(version, text) == build
