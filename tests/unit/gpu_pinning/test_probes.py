"""A program that was cut off has said nothing: neither "no right" nor "bare metal" follows from it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpu_pinning import device_fence, probes, virt
from gpu_pinning.errors import TopologyError


class Program:
    """A program on PATH that answers, or is cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.says("")

    def says(self, text: str, code: int = 0) -> None:
        self._write(f"echo {text}; exit {code}")

    def is_killed(self) -> None:
        self._write("kill -9 $$")

    def _write(self, body: str) -> None:
        self.path.write_text(f"#!/bin/sh\n{body}\n")
        self.path.chmod(0o755)


@pytest.fixture
def detect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Program(tmp_path / "systemd-detect-virt")


def test_the_last_answer_stands_where_the_program_is_killed(detect: Program) -> None:
    detect.says("vmware")
    assert virt.hypervisor(Path("/")) == "vmware"
    detect.is_killed()
    assert virt.hypervisor(Path("/")) == "vmware"


def test_a_machine_that_shows_no_trace_is_not_bare_metal_while_the_program_does_not_answer(
    detect: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virt, "_by_traces", lambda root: "none")
    detect.is_killed()
    assert virt.hypervisor(Path("/")) is None
    detect.says("none", code=1)
    assert virt.hypervisor(Path("/")) == "none"
    monkeypatch.setattr(virt, "_by_traces", lambda root: "xen")
    detect.is_killed()
    assert virt.hypervisor(Path("/")) == "xen", "what shows itself is known all the same"


def test_a_trial_of_namespaces_that_is_cut_off_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = Program(tmp_path / "python")
    monkeypatch.setattr(sys, "executable", str(python.path))
    python.is_killed()
    with pytest.raises(TopologyError, match="try-namespaces: killed by signal 9"):
        device_fence.method(())
    python.says("mount-namespace")
    assert device_fence.method(()) == "mount-namespace"
    python.is_killed()
    assert device_fence.method(()) == "mount-namespace"
    python.says("none")
    assert device_fence.method(()) == "none"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("exit 0", "it printed nothing"),
        ("exec sleep 20", r"no answer within 0\.2 s"),
        ("kill -9 $$", "signal 9"),
    ],
)
def test_no_answer_says_why(tmp_path: Path, body: str, why: str) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    with pytest.raises(TopologyError, match=why):
        probes.ask([str(program)], 0.2 if "sleep" in body else 10)


def test_a_kernel_filter_that_forbids_the_trial_is_an_answer(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nkill -SYS $$\n")
    program.chmod(0o755)
    assert probes.ask([str(program)], 10) == ""
