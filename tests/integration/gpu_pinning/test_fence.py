"""Fences hold on the machine that the tests run on, and what is reported is what the kernel says."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from gpu_pinning import bpf_devices, device_fence, procfs, rights, topology
from gpu_pinning.audit import audit_slot
from gpu_pinning.device_fence import LAUNCHER
from gpu_pinning.errors import FenceError, KillRefused
from gpu_pinning.fence import Fence, disk_of
from gpu_pinning.group import SlotGroup
from gpu_pinning.launch import REFUSED
from gpu_pinning.machine import CgroupRight, DeviceFenceMethod, DeviceNode, Topology
from tests.integration.gpu_pinning.conftest import Workshop, needs, until, without_cgroups

TRY_TO_WIDEN = """
import json, os, threading, time
seen = {}
def widen():
    try:
        os.sched_setaffinity(0, range(os.cpu_count()))
    except OSError as error:
        seen["error"] = error.errno
    seen["cpus"] = sorted(os.sched_getaffinity(0))
    print(json.dumps(seen), flush=True)
    time.sleep(600)
threading.Thread(target=widen).start()
time.sleep(600)
"""
SLEEP = "import time; print('1', flush=True); time.sleep(600)"
SPIN = """
import os, sys
name = sys.argv[1] if len(sys.argv) > 1 else os.environ["COUNT"]
fd = os.open(name, os.O_RDWR | os.O_CREAT)
n = 0
while True:
    n += 1
    os.pwrite(fd, n.to_bytes(8, "little"), 0)
"""


def test_a_cpuset_holds_also_against_the_slot_itself(workshop: Workshop, machine: Topology) -> None:
    needs(machine, "cpuset")
    fence = workshop.fence()
    slot = workshop.start(fence, TRY_TO_WIDEN)
    seen = slot.line()
    assert set(seen["cpus"]) == set(fence.slot.cpus)
    rows = fence.read_back(slot.process.pid)
    assert len([row for row in rows if row.what.startswith("CPUs of thread")]) == 2
    assert [row for row in rows if not row.ok] == []
    assert not any(row.weak for row in rows)


def test_affinity_alone_is_called_weak_and_its_widening_is_seen(
    workshop: Workshop, machine: Topology
) -> None:
    if len(machine.allowed_cpus) < 2:
        pytest.skip("one CPU cannot be widened")
    fence = workshop.fence(machine=without_cgroups(machine))
    assert fence.slot.fence.weak
    slot = workshop.start(fence, TRY_TO_WIDEN)
    assert set(slot.line()["cpus"]) > set(fence.slot.cpus)
    rows = [row for row in fence.read_back(slot.process.pid) if row.what.startswith("CPUs of thread")]
    assert all(row.weak for row in rows)
    # The main thread stayed, the one that a library might have started strayed.
    assert sorted(row.ok for row in rows) == [False, True]


def test_the_environment_reaches_the_slot(workshop: Workshop) -> None:
    fence = workshop.fence()
    slot = workshop.start(
        fence, "import json, os, time; print(json.dumps(dict(os.environ)), flush=True); time.sleep(600)"
    )
    env = slot.line()
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["OMP_NUM_THREADS"] == "1"


def test_nice_and_io_priority_are_set(workshop: Workshop) -> None:
    fence = workshop.fence('nice = 12\nionice = "idle"')
    slot = workshop.start(fence, SLEEP)
    assert os.getpriority(os.PRIO_PROCESS, slot.process.pid) == 12
    report = {row.what: row for row in fence.await_launch(slot.process.pid)}
    assert report["nice"].ok
    assert json.loads(report["ionice"].found)[0] == 3


def test_memory_policy_is_bound_and_read_back(workshop: Workshop, machine: Topology) -> None:
    """A machine with one node needs no policy, so the fence is told of a second one."""
    two = without_cgroups(machine.model_copy(update={"allowed_nodes": (*machine.allowed_nodes, 1023)}))
    fence = workshop.fence(machine=two)
    slot = workshop.start(fence, SLEEP)
    slot.line()
    bound = procfs.memory_policy(slot.process.pid)
    if bound is None:
        pytest.skip("this kernel has no numa_maps")
    node = ",".join(map(str, fence.slot.nodes))
    if (
        bound == "default"
        and not {r.what: r for r in fence.await_launch(slot.process.pid)}["memory policy"].ok
    ):
        pytest.skip("set_mempolicy is refused here")
    assert bound == f"bind:{node}"
    assert all(row.ok for row in fence.read_back(slot.process.pid))


def with_rights(kind: str, machine: Topology) -> Topology:
    """The machine with v2 or hybrid groups as it is, with v1's freezer alone, or without any right."""
    if kind == "none":
        return without_cgroups(machine)
    if kind == "v1":
        freezer = rights.own_hierarchies().v1.get("freezer")
        if freezer is None or rights._try_v1("freeze", freezer):
            pytest.skip("no right to the v1 freezer")
        v1 = tuple(right for right in machine.cgroups if right.version == 1)
        freeze = CgroupRight(controller="freeze", version=1, base=str(freezer), granted=True)
        return machine.model_copy(update={"cgroups": (*v1, freeze)})
    needs(machine, "freeze", "kill")
    return machine


@pytest.mark.parametrize("kind", ["cgroup", "v1", "none"])
def test_freeze_stops_the_whole_slot_and_thaw_goes_on(
    kind: str, workshop: Workshop, machine: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    fence = workshop.fence(machine=with_rights(kind, machine))
    # A child and a grandchild count too.
    child = f"subprocess.Popen([sys.executable, '-c', {SPIN!r}, {str(tmp_path / 'child')!r}])"
    code = f"import subprocess, sys\n{child}\n{SPIN}"
    slot = workshop.start(fence, code)

    def counts() -> list[bytes]:
        return [(tmp_path / name).read_bytes() for name in ("count", "child")]

    until(lambda: (tmp_path / "child").exists() and all(counts()))
    stop = fence.freeze(slot.process.pid)
    assert stop.how == ("SIGSTOP" if kind == "none" else "cgroup")
    assert len(stop.pids) == 2
    still = counts()
    time.sleep(0.2)
    assert counts() == still
    fence.thaw(slot.process.pid)
    until(lambda: all(a != b for a, b in zip(counts(), still, strict=True)))


@pytest.mark.parametrize("kind", ["cgroup", "v1", "none"])
def test_kill_ends_children_and_frozen_ones_too(kind: str, workshop: Workshop, machine: Topology) -> None:
    fence = workshop.fence(machine=with_rights(kind, machine))
    slot = workshop.start(
        fence,
        "import json, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(json.dumps(child.pid), flush=True); time.sleep(600)",
    )
    grandchild = slot.line()
    fence.freeze(slot.process.pid)
    fence.kill(slot.process.pid)
    slot.process.wait(10)
    state = procfs.process(grandchild)
    assert state is None or state.state in "ZX"


def test_a_daemon_that_leaves_its_session_does_not_leave_its_group(
    workshop: Workshop, machine: Topology
) -> None:
    """openjd-sessions PR 162: a grandchild survives and keeps the GPU."""
    needs(machine, "kill")
    fence = workshop.fence()
    slot = workshop.start(
        fence,
        "import json, os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "    print(json.dumps(os.getpid()), flush=True); time.sleep(600)\n"
        "os.wait(); time.sleep(600)",
    )
    daemon = slot.line()
    slot.process.kill()
    slot.process.wait()
    assert daemon in fence.group.pids()
    fence.kill()
    assert fence.group.pids() == []
    fence.remove()
    assert not any(path.exists() for path in fence.group.paths)


def test_killed_to_ready_is_under_three_seconds(workshop: Workshop) -> None:
    fence = workshop.fence()
    slot = workshop.start(fence, SLEEP)
    slot.line()
    began = time.monotonic()
    fence.kill(slot.process.pid)
    slot.process.wait()
    again = workshop.start(fence, SLEEP)
    again.line()
    assert time.monotonic() - began < 3.0


def test_a_cpu_limit_slows_and_a_weight_is_read_back(workshop: Workshop, machine: Topology) -> None:
    needs(machine, "cpu")
    fence = workshop.fence()
    assert fence.group.set_cpu_weight(50).ok
    assert fence.group.set_cpu_limit(0.2).ok
    slot = workshop.start(
        fence,
        "import json, time\n"
        "began = time.monotonic()\n"
        "while time.process_time() < 0.2: pass\n"
        "print(json.dumps(time.monotonic() - began), flush=True); time.sleep(600)",
    )
    # A fifth of a CPU: 0.2 s of work, less what starting took of it, last well over 0.4 s.
    assert slot.line() > 0.4
    assert fence.group.set_cpu_limit(None).ok


def test_a_restart_waits_for_its_own_launch(workshop: Workshop) -> None:
    """The report of the launch before must not be taken for this one's."""
    fence = workshop.fence()
    workshop.start(fence, SLEEP).line()
    fence.kill(workshop.started[0].process.pid)
    workshop.started[0].process.wait()
    fence.command([sys.executable, "-c", SLEEP])
    with pytest.raises(FenceError, match="no report"):
        fence.await_launch(os.getpid(), seconds=0.05)


def test_leftovers_of_a_dead_agent_are_found_and_ended(workshop: Workshop, machine: Topology) -> None:
    needs(machine, "kill")
    fence = workshop.fence()
    workshop.start(fence, SLEEP).line()
    later = Fence.create(machine, fence.slot, fence.run_dir)
    with pytest.raises(FenceError, match="of an earlier run"):
        later.apply()
    assert later.clear()
    later.apply()
    assert not later.clear()


def test_memory_limit_holds(workshop: Workshop, machine: Topology) -> None:
    needs(machine, "memory")
    fence = workshop.fence('memory = "96 MiB"')
    assert [row for row in fence.settings if "memory." in row.what and row.found == str(96 << 20)]
    slot = workshop.start(fence, "x = bytearray(400 << 20); import time; time.sleep(600)")
    assert slot.process.wait(90) == -9


def test_process_limit_holds(workshop: Workshop, machine: Topology) -> None:
    needs(machine, "pids")
    fence = workshop.fence("processes = 16")
    slot = workshop.start(
        fence,
        "import json, os, time\n"
        "n = 0\n"
        "try:\n"
        "    while n < 64:\n"
        "        if os.fork() == 0: time.sleep(600)\n"
        "        n += 1\n"
        "except BlockingIOError: pass\n"
        "print(json.dumps(n), flush=True); time.sleep(600)",
    )
    assert slot.line() == 15


def test_disk_limit_is_written_for_the_whole_disk(
    workshop: Workshop, machine: Topology, tmp_path: Path
) -> None:
    needs(machine, "io")
    if disk_of(tmp_path) is None:
        pytest.skip("the work folder is on no disk")
    fence = workshop.fence(f'disk_write = "20 MB"\n[paths]\nwork = "{tmp_path}"')
    (row,) = [row for row in fence.settings if "blkio" in row.what or "io.max" in row.what]
    assert row.ok
    assert "20000000" in row.found


def test_a_limit_without_its_right_is_an_error_not_silence(workshop: Workshop, machine: Topology) -> None:
    needs(machine, "memory")
    # the plan was made while there was a right
    slot = workshop.slot('memory = "96 MiB"')
    with pytest.raises(FenceError, match="no right to this controller"):
        Fence.create(without_cgroups(machine), slot, workshop.folder).apply()


@pytest.mark.parametrize(
    ("wish", "controller", "names", "other"),
    [
        ('memory = "96 MiB"', "memory", ("memory.limit_in_bytes", "memory.max"), str(80 << 20)),
        ("processes = 50", "pids", ("pids.max", "pids.max"), "70"),
        ("cpu_weight = 7", "cpu", ("cpu.shares", "cpu.weight"), "200"),
    ],
)
def test_a_limit_that_somebody_changes_is_found(
    wish: str, controller: str, names: tuple[str, str], other: str, workshop: Workshop, machine: Topology
) -> None:
    needs(machine, controller)
    fence = workshop.fence(wish)
    slot = workshop.start(fence, "import time; time.sleep(600)")
    assert [row for row in audit_slot(fence, slot.process.pid) if row.kind == "limits"] == []
    path = fence.group.folders[controller] / names[fence.group.versions[controller] - 1]
    was = path.read_text().strip()
    path.write_text(other)
    (finding,) = [row for row in audit_slot(fence, slot.process.pid) if row.kind == "limits"]
    assert (finding.subject, finding.wanted, finding.found, finding.drains) == (path.name, was, other, True)
    # put up anew, it holds again
    slot.process.kill()
    slot.process.wait()
    fence.apply()
    assert path.read_text().strip() == was and fence.group.read_limits() != []
    assert all(row.ok for row in fence.group.read_limits())


def test_a_thread_that_was_moved_out_of_its_group_alone_is_found(
    workshop: Workshop, machine: Topology
) -> None:
    fence = workshop.fence()
    controller = next(
        (c for c, v in fence.group.versions.items() if v == 1 and c in fence.group.folders), None
    )
    if controller is None:
        pytest.skip("no v1 controller here, and v2 keeps the threads of a process together")
    slot = workshop.start(
        fence,
        "import json, threading, time\n"
        "t = threading.Thread(target=time.sleep, args=(600,), daemon=True); t.start()\n"
        "print(json.dumps(t.native_id), flush=True); time.sleep(600)",
    )
    thread = slot.line()
    assert [row for row in audit_slot(fence, slot.process.pid) if row.kind == "left-group"] == []
    folder = fence.group.folders[controller]
    (folder.parent / "tasks").write_text(str(thread))
    (finding,) = [row for row in audit_slot(fence, slot.process.pid) if row.kind == "left-group"]
    assert (finding.subject, finding.found) == (controller, f"threads [{thread}] are elsewhere")
    assert finding.drains


METHODS: list[DeviceFenceMethod] = ["devices-v1", "devices-bpf", "mount-namespace", "user-namespace"]


@pytest.mark.parametrize("method", METHODS)
def test_device_nodes_do_not_open_inside(
    method: DeviceFenceMethod, workshop: Workshop, machine: Topology, fake_gpu_nodes: tuple[DeviceNode, ...]
) -> None:
    """mujoco 3245: engines that ignore CUDA open the nodes themselves."""
    if method == "devices-v1":
        needs(machine, "devices")
        if machine.right("devices").version != 1:
            pytest.skip("devices is in v2")
    if method == "devices-bpf":
        needs(machine, "kill")
        right = machine.right("kill")
        if reason := device_fence._try_bpf(Path(right.base or "")):
            pytest.skip(reason)
    if method.endswith("namespace") and os.geteuid() != 0 and method.startswith("mount"):
        pytest.skip("needs root")
    if method == "user-namespace" and os.geteuid() == 0:
        pytest.skip("root uses the mount namespace; the ordinary user's test covers this one")
    stand_in = machine.model_copy(update={"device_nodes": fake_gpu_nodes, "device_fence": method})
    fence = workshop.fence(machine=stand_in)
    path = fake_gpu_nodes[0].path
    code = f"""
import json, os, time
try:
    os.open({path!r}, os.O_RDWR | os.O_NONBLOCK); answer = 0
except OSError as error:
    answer = error.errno
print(json.dumps([answer, os.path.exists("/dev/null") and bool(open("/dev/null", "w"))]), flush=True)
time.sleep(600)
"""
    slot = workshop.start(fence, code)
    number, rest_works = slot.line()
    assert number in (1, 13)  # EPERM from a cgroup, EACCES from a nodev mount
    assert rest_works
    report = {row.what: row for row in fence.await_launch(slot.process.pid)}
    assert report["devices"].ok
    assert fence.try_devices() == []
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # outside nothing changed


@pytest.mark.parametrize("method", ["devices-v1", "devices-bpf"])
def test_exact_minors_leave_their_siblings_alone(method: str, machine: Topology) -> None:
    """A GPU slot loses the other GPUs' files, of the same major as its own: here /dev/zero, but not
    /dev/null."""
    if method == "devices-v1" and machine.right("devices").version != 1:
        pytest.skip("devices is in v2")
    needs(machine, "devices" if method == "devices-v1" else "kill")
    some = [right for right in machine.cgroups if right.controller in ("devices", "kill")]
    group = SlotGroup("minors", some, f"test-{os.getpid()}")
    group.make()
    try:
        denied: list[tuple[int, int | None]] = [(1, 5), (1, 99), (250, None)]
        if method == "devices-v1":
            device_fence.deny_v1(group.folders["devices"], denied)
        else:
            if reason := device_fence._try_bpf(group.folders["kill"].parent):
                pytest.skip(reason)
            bpf_devices.deny(group.folders["kill"], denied)
        code = f"""
import os
for procs in {group.procs_files!r}:
    fd = os.open(procs, os.O_WRONLY); os.write(fd, b"0"); os.close(fd)
for path in ("/dev/null", "/dev/full", "/dev/zero"):
    try:
        os.open(path, os.O_RDWR); print("opens")
    except OSError as error:
        print(error.errno)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["opens", "opens", "1"]
    finally:
        group.remove()


def test_a_machine_that_gives_no_device_fence_says_not_fenced(
    workshop: Workshop, machine: Topology, fake_gpu_nodes: tuple[DeviceNode, ...]
) -> None:
    bare = without_cgroups(machine).model_copy(update={"device_nodes": fake_gpu_nodes})
    fence = workshop.fence(machine=bare)
    path = fake_gpu_nodes[0].path
    code = f"""
import os, time
fd = os.open({path!r}, os.O_RDWR | os.O_NONBLOCK)
print(1, flush=True)
time.sleep(600)
"""
    slot = workshop.start(fence, code)
    slot.line()
    report = {row.what: row for row in fence.await_launch(slot.process.pid)}
    assert not report["devices"].ok
    assert path in report["devices"].found
    assert fence.try_devices() == [f"{path} opens"]
    if path.startswith(("/dev/nvidia", "/dev/dri")):
        assert not fence.devices_held(slot.process.pid).ok


def test_a_refused_launch_tells_why_and_starts_nothing(
    workshop: Workshop, machine: Topology, tmp_path: Path
) -> None:
    fence = Fence.create(without_cgroups(machine), workshop.slot(), tmp_path)
    wrong = fence.slot.model_copy(update={"cpus": (4095,)})
    fence = Fence.create(without_cgroups(machine), wrong, tmp_path)
    fence.apply()
    marker = tmp_path / "ran"
    argv = fence.command([sys.executable, "-c", f"open({str(marker)!r}, 'w')"])
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as child:
        with pytest.raises(FenceError, match="affinity"):
            fence.await_launch(child.pid)
        _, told = child.communicate()
    assert child.returncode == REFUSED
    assert "fence refused: affinity" in told
    assert not marker.exists()


def test_a_refused_cgroup_write_is_seen(workshop: Workshop, machine: Topology, tmp_path: Path) -> None:
    """A buffered file object would have lost this answer."""
    needs(machine, "cpuset")
    wrong = workshop.slot().model_copy(update={"cpus": (4095,)})
    fence = Fence.create(machine, wrong, tmp_path)
    with pytest.raises(FenceError, match=r"cpuset\.cpus"):
        fence.apply()
    assert not any(path.exists() for path in fence.group.paths)


def test_an_mps_client_is_never_killed(workshop: Workshop, machine: Topology, tmp_path: Path) -> None:
    """SIGKILL on an MPS client took the decode process down with it."""
    fence = workshop.fence()
    slot = workshop.start(fence, SLEEP)
    slot.line()
    mps = Fence.create(machine, fence.slot.model_copy(update={"kind": "mps"}), tmp_path)
    with pytest.raises(KillRefused):
        mps.kill(slot.process.pid)
    assert slot.process.poll() is None


def test_an_mps_client_needs_the_daemon(workshop: Workshop, machine: Topology, tmp_path: Path) -> None:
    """Without it CUDA would take turns with the neighbour on the whole GPU, and say nothing."""
    seat = workshop.fence().slot
    pipes = tmp_path / "mps"
    environment = seat.environment | {"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    fence = Fence.create(machine, seat.model_copy(update={"environment": environment}), tmp_path)
    with pytest.raises(FenceError, match="nvidia-cuda-mps-control -d"):
        fence.command(["true"])
    pipes.mkdir()
    (pipes / "control").touch()
    ended = subprocess.Popen(["true"])
    ended.wait()
    (pipes / "nvidia-cuda-mps-control.pid").write_text(f"{ended.pid}\n")
    with pytest.raises(FenceError, match="no MPS daemon"):
        fence.command(["true"])
    (pipes / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
    assert fence.command(["true"])


def test_the_slot_dies_with_the_agent(machine: Topology, tmp_path: Path) -> None:
    code = f"""
import subprocess, sys
from pathlib import Path
from gpu_pinning.fence import Fence
from gpu_pinning.machine import Topology
from gpu_pinning.placement import make_plan
machine = Topology.load(Path({str(tmp_path / "machine.json")!r}))
fence = Fence.create(machine, make_plan(machine).slots[0], Path({str(tmp_path)!r}))
fence.apply()
child = subprocess.Popen(fence.command(["sleep", "600"]))
fence.await_launch(child.pid)
print(child.pid, flush=True)
sys.stdin.read()
"""
    (tmp_path / "machine.json").write_text(without_cgroups(machine).dump())
    agent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert agent.stdin and agent.stdout
    pid = int(agent.stdout.readline())
    agent.kill()
    agent.wait()
    until(lambda: (state := procfs.process(pid)) is None or state.state in "ZX")
    agent.stdin.close()
    agent.stdout.close()


class _NotHereError(Exception):
    """Something that this test needs is closed to other users on this machine."""


def _python_for_everybody() -> str:
    if not os.access(LAUNCHER, os.R_OK):
        raise _NotHereError("the working tree cannot be read by other users")
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            if subprocess.run([python, "-I", "-S", "-c", "import ctypes, json"], check=False).returncode == 0:
                return python
    raise _NotHereError("no Python that other users may run")


@pytest.mark.skipif(os.geteuid() != 0, reason="changes its user")
def test_an_ordinary_user_gets_affinity_a_user_namespace_and_a_clear_label(
    fake_gpu_nodes: tuple[DeviceNode, ...],
) -> None:
    """The whole life of a slot as uid 65534, with a device file that everybody may open."""
    node = next((n for n in fake_gpu_nodes if Path(n.path).stat().st_mode & 0o006 == 0o006), None)
    folder = Path(tempfile.mkdtemp(prefix="stillframe-", dir="/tmp"))  # pytest's own is closed to others
    folder.chmod(0o777)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer: dict[str, object] = {}
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            sys.executable = _python_for_everybody()
            mine = topology.read(device_nodes=(node,) if node else ())
            answer["cgroups"] = [right.controller for right in mine.cgroups if right.granted]
            answer["method"] = mine.device_fence
            shop = Workshop(mine, folder / "run")
            fence = shop.fence()
            slot = shop.start(fence, SLEEP)
            slot.line()
            rows = fence.read_back(slot.process.pid)
            answer["wrong"] = [row.what for row in rows if not row.ok]
            answer["weak"] = any(row.weak for row in rows)
            answer["opens"] = fence.try_devices() if node else []
            fence.kill(slot.process.pid)
            answer["left"] = slot.process.wait(10)
            shop.close()
        except _NotHereError as reason:
            answer["skip"] = str(reason)
        except BaseException as error:
            answer["error"] = repr(error)
        os.write(write_end, json.dumps(answer).encode())
        os._exit(0)
    os.close(write_end)
    text = b""
    while chunk := os.read(read_end, 65536):
        text += chunk
    os.close(read_end)
    os.waitpid(pid, 0)
    shutil.rmtree(folder)
    answer = json.loads(text)
    if "skip" in answer:
        pytest.skip(answer["skip"])
    assert answer.get("error") is None
    assert answer["cgroups"] == []
    assert answer["wrong"] == []
    assert answer["weak"] is True
    assert answer["left"] == -9
    if node and answer["method"] == "user-namespace":
        assert answer["opens"] == []
    elif node:
        assert answer["opens"]
