"""Servers found among processes: in a /proc written for the case, and among real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_pinning import cpulist, texts, topology
from gpu_pinning.discover import discover_neighbours
from gpu_pinning.observed import ObservedNeighbour
from gpu_pinning.texts import neighbours_text
from gpu_pinning.wishes import Wishes
from tests.unit.gpu_pinning.trees import put, recorded

CID = "3f" * 32


def process(
    proc: Path,
    pid: int,
    parent: int,
    argv: list[str],
    cpus: str = "0-31",
    cgroup: str = "0::/system.slice/vllm.service",
    env: dict[str, str] | None = None,
    devices: tuple[str, ...] = (),
) -> None:
    name = Path(argv[0]).name[:15]
    put(proc, f"{pid}/stat", f"{pid} ({name}) S {parent} {pid} {pid} " + " ".join(["0"] * 30))
    put(proc, f"{pid}/task/{pid}/status", f"Name:\t{name}\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t0")
    put(proc, f"{pid}/cgroup", cgroup)
    (proc / str(pid) / "cmdline").write_text("\0".join(argv) + "\0")
    (proc / str(pid) / "environ").write_text("\0".join(f"{k}={v}" for k, v in (env or {}).items()))
    (proc / str(pid) / "fd").mkdir()
    for number, device in enumerate(devices):
        (proc / str(pid) / "fd" / str(number)).symlink_to(device)


def test_a_vllm_service_with_its_engine_core(tmp_path: Path) -> None:
    machine = recorded("workstation")
    process(
        tmp_path,
        4200,
        1,
        ["/opt/vllm/bin/python", "/opt/vllm/bin/vllm", "serve", "org/m-7b", "--port", "8100"],
    )
    # NVML lists pid 4242 on the first GPU of this machine.
    process(tmp_path, 4242, 4200, ["VLLM::EngineCore"])
    process(tmp_path, 50, 1, ["bash", "-c", "vllm serve"])
    (seen,) = discover_neighbours(machine, tmp_path)
    assert (seen.kind, seen.pid, seen.pids) == ("vllm", 4200, (4200, 4242))
    assert (seen.port, seen.model, seen.unit) == (8100, "org/m-7b", "vllm.service")
    assert seen.gpus == (machine.gpus[0].uuid,)
    assert seen.whole_machine
    text, code = neighbours_text(proc=tmp_path, machine=machine)
    assert code == 0
    assert "systemctl set-property --runtime vllm.service AllowedCPUs=0-3,16-19" in text
    declared = Wishes.parse("\n".join(line for line in text.partition("farm.toml:")[2].splitlines()))
    assert declared.neighbours[0].gpus == seen.gpus


def test_an_sglang_decode_server_in_a_container_with_a_cpuset(tmp_path: Path) -> None:
    machine = recorded("permuted-minors")
    process(
        tmp_path,
        900,
        880,
        ["python3", "-m", "sglang.launch_server", "--model-path", "m", "--disaggregation-mode", "decode"],
        cpus="0-7,32-39",
        cgroup=f"0::/system.slice/docker-{CID}.scope",
        env={"CUDA_VISIBLE_DEVICES": "2"},
    )
    process(
        tmp_path,
        901,
        900,
        ["sglang::scheduler"],
        cpus="0-7,32-39",
        cgroup=f"0::/system.slice/docker-{CID}.scope",
    )
    (seen,) = discover_neighbours(machine, tmp_path)
    assert (seen.kind, seen.role, seen.port, seen.model) == ("sglang", "decode", 30000, "m")
    assert (seen.container, seen.unit) == (CID, None)
    assert cpulist.show(seen.cpus) == "0-7,32-39"
    assert not seen.whole_machine
    # CUDA's third GPU by PCI address; its device file is /dev/nvidia0 on this machine.
    assert seen.gpus == (next(g.uuid for g in machine.gpus if g.pci == "0000:af:00.0"),)


def test_open_device_files_tell_the_gpu_by_minor(tmp_path: Path) -> None:
    machine = recorded("permuted-minors")
    process(tmp_path, 9, 1, ["llama-server", "-m", "/m.gguf"], devices=("/dev/nvidia3", "/dev/nvidiactl"))
    (seen,) = discover_neighbours(machine, tmp_path)
    assert (seen.kind, seen.model, seen.port) == ("llama.cpp", "/m.gguf", 8080)
    assert seen.gpus == (next(g.uuid for g in machine.gpus if g.minor == 3),)


def test_prefill_is_told_by_the_kv_connector(tmp_path: Path) -> None:
    config = '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'
    process(tmp_path, 9, 1, ["vllm", "serve", "m", "--kv-transfer-config", config])
    (seen,) = discover_neighbours(recorded("workstation"), tmp_path)
    assert seen.role == "prefill"


def test_two_servers_are_two_neighbours(tmp_path: Path) -> None:
    process(tmp_path, 9, 1, ["vllm", "serve", "a", "--port=8001"])
    process(tmp_path, 10, 1, ["text-generation-launcher", "--model-id", "b"])
    seen = discover_neighbours(recorded("workstation"), tmp_path)
    assert [(s.kind, s.port, s.model) for s in seen] == [("vllm", 8001, "a"), ("tgi", 3000, "b")]


@pytest.mark.parametrize("held", [True, False])
def test_a_real_process_that_looks_like_a_server(held: bool, tmp_path: Path) -> None:
    script = tmp_path / "vllm"
    script.write_text("import sys, time\nprint(1, flush=True)\ntime.sleep(600)\n")
    machine = topology.read()
    first = os.sched_getaffinity(0) if not held else {min(os.sched_getaffinity(0))}
    child = subprocess.Popen(
        [sys.executable, str(script), "serve", "m", "--port", "18123"],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, first),
    )
    try:
        assert child.stdout and child.stdout.readline()
        seen = [s for s in discover_neighbours(machine) if s.pid == child.pid]
        assert [(s.port, set(s.cpus)) for s in seen] == [(18123, first)]
    finally:
        child.kill()
        child.wait()
        child.stdout and child.stdout.close()
    deadline = time.monotonic() + 10
    while any(s.pid == child.pid for s in discover_neighbours(machine)):
        assert time.monotonic() < deadline


@pytest.mark.parametrize(("cores", "wanted"), [(1, 1), (2, 1), (6, 3), (9, 4)])
def test_the_lines_that_declare_a_server_leave_cores_to_slots(
    cores: int, wanted: int, tmp_path: Path
) -> None:
    machine = recorded("workstation")
    kept = machine.cores[:cores]
    machine = machine.model_copy(
        update={
            "cores": kept,
            "gpus": (),
            "allowed_cpus": tuple(sorted(cpu for core in kept for cpu in core.cpus)),
        }
    )
    everywhere = ObservedNeighbour(
        kind="vllm", pid=7, pids=(7,), model=None, role="both", port=8000, gpus=(),
        cpus=machine.allowed_cpus, whole_machine=True,
    )  # fmt: skip
    assert f"\ncores = {wanted}\n" in texts._toml("n", everywhere, machine)
    held = everywhere.model_copy(update={"cpus": (0,), "whole_machine": False})
    text = texts._toml("n", held, machine)
    assert '\ncpus = "0"\n' in text
    assert Wishes.parse(text).neighbours[0].cores == (0,)
