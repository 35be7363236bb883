"""File names and texts of cgroup v2, in folders that look like one; real kernels are met in
tests/integration."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_pinning.device_fence import denied_numbers
from gpu_pinning.errors import FenceError
from gpu_pinning.group import SlotGroup
from gpu_pinning.machine import CgroupRight, DeviceNode

CONTROLLERS = ("cpuset", "cpu", "memory", "io", "pids", "freeze", "kill")


@pytest.fixture
def group(tmp_path: Path) -> SlotGroup:
    rights = [
        CgroupRight(controller=name, version=2, base=str(tmp_path), granted=True) for name in CONTROLLERS
    ]
    made = SlotGroup("gpu-0", rights, "abc")
    (tmp_path / "cgroup.subtree_control").write_text("cpuset cpu memory io pids")
    made.make()
    settings = "cpuset.cpus cpuset.mems memory.max memory.high memory.swap.max pids.max io.max"
    settings += " cpu.weight cpu.max"
    for name in settings.split():
        (made.paths[0] / name).write_text("")
    (made.paths[0] / "cpuset.cpus.effective").write_text("0-3\n")
    (made.paths[0] / "cpuset.mems.effective").write_text("0\n")
    return made


def test_one_folder_serves_every_controller(group: SlotGroup, tmp_path: Path) -> None:
    assert group.paths == [tmp_path / "stillframe-abc-gpu-0"]
    assert group.procs_files == [str(tmp_path / "stillframe-abc-gpu-0/cgroup.procs")]


def test_groups_that_a_slot_makes_for_its_children_are_its_own(group: SlotGroup) -> None:
    (group.paths[0] / "cgroup.procs").write_text("10\n")
    below = group.paths[0] / "stillframe-child-10-0"
    below.mkdir()
    (below / "cgroup.procs").write_text("11\n12\n")
    assert group.pids() == [10, 11, 12]


def test_what_counts_is_the_effective_set(group: SlotGroup) -> None:
    assert [row.ok for row in group.set_cpus([0, 1, 2, 3], [0])] == [True, True]
    (group.paths[0] / "cpuset.cpus.effective").write_text("0-1\n")
    mems, cpus = group.set_cpus([0, 1, 2, 3], [0])
    assert mems.ok
    assert (cpus.ok, cpus.wanted, cpus.found) == (False, "0-3", "0-1")


def test_limits_by_their_v2_names(group: SlotGroup) -> None:
    assert all(row.ok for row in group.set_memory(100_000_000))
    # Whole pages: 24,414 of 4,096 bytes.
    assert (group.paths[0] / "memory.max").read_text() == "99999744"
    assert (group.paths[0] / "memory.swap.max").read_text() == "0"
    # seven eighths of 99,999,744 bytes are 87,499,776, which is 21,362 whole pages and a bit
    assert (group.paths[0] / "memory.high").read_text() == "87498752"
    assert group.set_processes(64)[0].ok
    assert group.set_cpu_weight(20).found == "20"
    assert group.set_cpu_limit(1.5).found == "15000 10000"
    group.set_disk_write("8:0", 1000)
    assert (group.paths[0] / "io.max").read_text() == "8:0 wbps=1000"


def test_a_missing_setting_is_an_error_in_the_row(group: SlotGroup) -> None:
    (group.paths[0] / "pids.max").unlink()
    (row,) = group.set_processes(64)
    assert not row.ok
    assert "No such file" in row.error


def test_a_base_that_is_gone_is_a_fence_error(tmp_path: Path) -> None:
    right = CgroupRight(controller="kill", version=2, base=str(tmp_path / "gone"), granted=True)
    with pytest.raises(FenceError, match="gone"):
        SlotGroup("a", [right]).make()


def test_rights_that_were_refused_make_no_folder(tmp_path: Path) -> None:
    right = CgroupRight(controller="cpuset", version=2, base=str(tmp_path), granted=False, reason="no")
    group = SlotGroup("a", [right])
    group.make()
    assert (group.paths, group.pids(), list(tmp_path.iterdir())) == ([], [], [])


@pytest.mark.parametrize(
    ("keep_none", "expected"),
    [(True, [(195, None), (510, None), (10, 200)]), (False, [(10, 200), (195, 0), (195, 255), (510, 3)])],
)
def test_a_cpu_slot_loses_whole_majors_but_not_the_one_that_all_kinds_share(
    keep_none: bool, expected: list[tuple[int, int | None]]
) -> None:
    numbers = [(195, 0), (195, 255), (510, 3), (10, 200)]
    nodes = tuple(DeviceNode(path=f"/dev/nvidia-{n}", major=n[0], minor=n[1], gpu=None) for n in numbers)
    assert denied_numbers(nodes, keep_none) == expected
