"""Hostile .blend files, one for each door: what they would do never runs, and is bounded if it ever did."""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farm.errors import InvalidSpec, TaskFailed
from jobs.render.blender.installation import choose
from jobs.render.bounds import Limits
from jobs.render.child_process import Child
from jobs.render.sandbox import Program, Room, confinement
from tests.integration.jobs.blender.conftest import Job, run_in_blender
from tests.unit.jobs.local_host import FileLog

MakeJob = Callable[..., Job]
LIMITS = Limits(memory=2**30, processes=96)
# Blender as it is set up to run everything, in the same room as the farm's own child
RUNS_SCRIPTS = """
import os, sys
import bpy
out = os.dup(1)
os.dup2(2, 1)
os.write(out, b'{"event": "up"}\\n')
sys.stdin.readline()
bpy.ops.wm.open_mainfile(filepath=sys.argv[1], use_scripts=True)
os.write(out, b'{"event": "opened"}\\n')
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def hostile(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hostile files."""
    folder = tmp_path_factory.mktemp("hostile")
    run_in_blender(python, "make_hostile.py", str(folder))
    return folder


@pytest.fixture
def listener(hostile: Path) -> Iterator[socket.socket]:
    """A server of this test on the loopback address, at which the file about the network aims."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        blend = hostile / "network.blend"
        head, mark, tail = blend.read_bytes().partition(b'PORT = int("')
        assert mark
        blend.write_bytes(head + mark + f"{server.getsockname()[1]:05}".encode() + tail[5:])
        yield server


def saw_nobody(listener: socket.socket) -> bool:
    """Whether nobody has come to the listener."""
    try:
        listener.accept()
    except BlockingIOError:
        return True
    return False


def test_nothing_in_a_hostile_file_runs(job: MakeJob, hostile: Path, listener: socket.socket) -> None:
    for door in ("network", "forks", "allocation"):
        one = job(hostile / f"{door}.blend", frames="1")
        host = one.run()
        assert ("render", 1) in host.published
        assert f"text '{door}.py' is set to run at load; it will not run" in host.log.text()
        assert not list(host.folder.rglob("said"))
    assert saw_nobody(listener)


@pytest.mark.parametrize("door", ["network", "forks", "allocation"])
def test_a_script_that_ran_all_the_same_would_be_bounded(
    hostile: Path, listener: socket.socket, tmp_path: Path, door: str
) -> None:
    if confinement().name != "bubblewrap":
        pytest.skip(f"scripts run here under bubblewrap alone: {confinement().reason}")
    blender = choose(None)
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        room = Room(Path(name) / "in", Path(name) / "out")
        room.inputs.mkdir()
        room.output.mkdir()
        shutil.copyfile(hostile / f"{door}.blend", room.inputs / f"{door}.blend")
        scene = f"/assets/{door}.blend"
        child = Child(
            Program((blender.command[0], "-I", "-c", RUNS_SCRIPTS, scene), blender.folders), room, {}, LIMITS
        )
        log = FileLog(tmp_path / "log")
        try:
            assert answer(child, log) == "up"
            # before the script runs: what holds, read back of the process itself
            holds = child.describe()
            if "pids cgroup of 96" not in holds and "as root" in holds:
                pytest.skip(f"neither a cgroup nor another user bounds the processes here: {holds}")
            if "memory cgroup of 1.00 GiB" not in holds and "at most 1.00 GiB" not in holds:
                pytest.skip(f"nothing bounds the memory here: {holds}")
            child._process.stdin.write(b"\n")
            child._process.stdin.flush()
            assert answer(child, log) == "opened", log.text()
            said = (room.output / "said").read_text()
        finally:
            child.end(politely=False)
    if door == "network":
        assert said in ("ConnectionRefusedError", "OSError", "TimeoutError")
    elif door == "forks":
        assert 0 <= int(said.removeprefix("forked ")) < 96
    else:
        assert float(said.removeprefix("got ").removesuffix(" GiB")) < 1.0
    assert saw_nobody(listener)


def answer(child: Child, log: FileLog) -> str:
    """What the child says next."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = child.receive(0.2, log)
        if found is not None:
            return str(found["event"])
    raise AssertionError(f"the child said nothing: {log.text()}")


def test_geometry_beyond_the_limit_names_the_frame_and_the_peak(job: MakeJob, hostile: Path) -> None:
    """A thousand million cubes: some hundred gigabytes, without a script."""
    one = job(hostile / "memory.blend", frames="1", memory_limit=2**30)
    with pytest.raises(TaskFailed, match=r"memory\.blend|frame 1") as caught:
        one.run()
    assert "GiB" in caught.value.message
    assert one.host.published == {}


def test_a_picture_beyond_all_limits_is_refused_before_it_is_rendered(job: MakeJob, hostile: Path) -> None:
    one = job(hostile / "huge.blend", frames="1")
    with pytest.raises(InvalidSpec, match=r"the file's 65536x65536 is not possible.*nearest: 11585x11585"):
        one.run()
    assert one.host.artifacts == {}
    small = job(hostile / "huge.blend", frames="1", blender={"resolution_percentage": 1})
    assert small.preflight()["facts"]["width"] == 655
