"""Rights are found by trying; locations by /proc/self/cgroup and mountinfo in all their layouts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_pinning import rights
from gpu_pinning.machine import CONTROLLERS
from tests.unit.gpu_pinning.trees import put


def test_every_controller_gets_an_answer_and_nothing_is_left_behind() -> None:
    here = rights.own_hierarchies()
    found = rights.probe(here)
    assert [right.controller for right in found] == list(CONTROLLERS)
    assert all(right.granted or right.reason for right in found)
    for base in [*here.v1.values(), *([here.v2] if here.v2 else [])]:
        assert not list(base.glob("stillframe-probe-*"))


def test_a_controller_that_was_not_given_to_children_is_not_afterwards() -> None:
    base = rights.own_hierarchies().v2
    control = base / "cgroup.subtree_control" if base else None
    if base is None or control is None or not os.access(control, os.W_OK):
        pytest.skip("no v2 group of our own")
    there = set((base / "cgroup.controllers").read_text().split())
    spare = sorted(there - set(control.read_text().split()))
    if not spare or ((base.parent / "cgroup.controllers").exists() and (base / "cgroup.procs").read_text()):
        pytest.skip("no controller to give, or a group that may give none while we sit in it")
    with rights._enabled(spare[0], base):
        assert spare[0] in control.read_text().split()
        with rights._enabled(spare[0], base):
            pass
        assert spare[0] in control.read_text().split(), "it was given before"
    assert spare[0] not in control.read_text().split()


def test_hybrid_machine(tmp_path: Path) -> None:
    put(
        tmp_path,
        "proc/self/mountinfo",
        "33 31 0:30 / /cg/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "34 31 0:31 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n"
        "41 31 0:38 / /cg/unified rw - cgroup2 cgroup2 rw",
    )
    put(tmp_path, "proc/self/cgroup", "3:cpuset:/farm\n2:cpu,cpuacct:/\n0::/farm/agent")
    for folder in ("cg/cpu,cpuacct", "cg/cpuset/farm", "cg/unified/farm/agent"):
        (tmp_path / folder).mkdir(parents=True)
    here = rights.own_hierarchies(tmp_path)
    assert here.v1["cpuset"] == tmp_path / "cg/cpuset/farm"
    assert here.v1["cpu"] == here.v1["cpuacct"] == tmp_path / "cg/cpu,cpuacct"
    assert here.v2 == tmp_path / "cg/unified/farm/agent"
    assert rights.slot_base(here.v2) == tmp_path / "cg/unified/farm"


def test_container_without_a_cgroup_namespace_uses_the_mount_point(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/mountinfo", "41 31 0:38 /docker/abc /cg rw - cgroup2 cgroup2 rw")
    put(tmp_path, "proc/self/cgroup", "0::/docker/abc/inner")
    (tmp_path / "cg/inner").mkdir(parents=True)
    assert rights.own_hierarchies(tmp_path).v2 == tmp_path / "cg/inner"
    put(tmp_path, "proc/self/cgroup", "0::/elsewhere")
    assert rights.own_hierarchies(tmp_path).v2 == tmp_path / "cg"


@pytest.mark.skipif(os.geteuid() != 0, reason="changes its user")
def test_an_ordinary_user_has_no_rights_outside_its_own_groups() -> None:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            found = rights.probe(rights.own_hierarchies())
            os.write(write_end, ",".join(r.controller for r in found if r.granted).encode() or b"none")
        finally:
            os._exit(0)
    os.close(write_end)
    assert os.read(read_end, 1000) == b"none"
    os.close(read_end)
    os.waitpid(pid, 0)
