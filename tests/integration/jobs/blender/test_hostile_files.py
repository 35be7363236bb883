"""Files that try to get out, and what a process could do that did: each door has its own file or program."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from farm.errors import EscapedPath, TaskFailed
from jobs.render.blender.installation import choose
from jobs.render.bounds import Bounds, Limits
from jobs.render.child_process import Child, ChildDied
from jobs.render.sandbox import Program, Room
from tests.integration.jobs.blender.conftest import Job
from tests.unit.jobs.local_host import FileLog

MakeJob = Callable[..., Job]
SECRET = "s3cret of the machine"


def test_scripts_and_python_drivers_never_run(job: MakeJob, made: Path) -> None:
    one = job(made / "scripts.blend", frames="1", outputs=["png"])
    host = one.run()
    # the script would have made the picture 10 pixels wide, the driver would have lifted the cube out of it
    picture = np.asarray(Image.open(one.file(1)))
    assert picture.shape == (36, 48, 3)
    plain = job(made / "plain.blend", frames="1")
    plain.run()
    assert np.array_equal(picture, np.asarray(Image.open(plain.file(1))))
    assert not list(host.folder.rglob("script-ran"))
    assert not Path("/tmp/script-ran").exists()


@pytest.mark.parametrize("scene", ["escape", "secret"])
def test_a_path_out_of_the_assets_reads_nothing(job: MakeJob, made: Path, scene: str, confined: str) -> None:
    """A picture stands where the path leads; the render must be as if it did not."""
    (made.parent / "secret").write_bytes(png())
    one = job(made / f"{scene}.blend", frames="1", blender={"allow_missing": True})
    (one.host.root.parents[1] / "secret").write_bytes(png())
    if confined == "plain":
        # nothing hides the file there, so Blender never opens the scene
        with pytest.raises(EscapedPath, match="which leaves the job's assets"):
            one.run()
        assert "loaded in" not in one.host.log.text()
        return
    one.run()
    absent = job(made / "absolute.blend", frames="1", blender={"allow_missing": True})
    absent.run()
    assert np.array_equal(np.asarray(Image.open(one.file(1))), np.asarray(Image.open(absent.file(1))))


def png() -> bytes:
    import io

    file = io.BytesIO()
    Image.new("RGB", (4, 4), (0, 255, 0)).save(file, "PNG")
    return file.getvalue()


def test_output_paths_of_the_file_are_not_written(job: MakeJob, made: Path) -> None:
    host = job(made / "elsewhere.blend", frames="1").run()
    assert not (made.parent / "elsewhere").exists()
    assert ("render", 1) in host.published


# --- what code in the child could do ----------------------------------------------------------------------

ATTACK = """
import json, os, socket, sys, time
def tries(action):
    try:
        return str(action())[:80]
    except BaseException as error:
        return type(error).__name__
def forks():
    made = 0
    for _ in range(500):
        try:
            pid = os.fork()
        except OSError:
            break
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
    return made
secret, port = {secret!r}, {port}
def say(**fields):
    os.write(1, (json.dumps({{"event": "tried", **fields}}) + "\\n").encode())
say(
    read=tries(lambda: open(secret).read()),
    climb=tries(lambda: open("/assets/../../secret").read()),
    write=tries(lambda: open("/usr/made", "w")),
    write_input=tries(lambda: open("/assets/scene.blend", "w")),
    connect=tries(lambda: socket.create_connection(("127.0.0.1", port), 3)),
    environment=sorted(os.environ),
    user=os.getuid(),
    allocate=tries(lambda: len(bytearray(100 * 2**30))),
)
sys.stdin.readline()
say(forks=forks())
sys.stdin.readline()
held = []
while True:
    held.append(os.urandom(2**20) * 16)
"""


@pytest.fixture
def room() -> Iterator[Room]:
    """Inputs and an output folder, with a secret beside them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "in").mkdir()
        (folder / "out").mkdir()
        (folder / "secret").write_text(SECRET)
        (folder / "secret").chmod(0o600)
        yield Room(folder / "in", folder / "out")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server of this test on the loopback address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.fixture
def attacker(room: Room, listener: socket.socket, tmp_path: Path, confined: str) -> Iterator[Any]:
    """Hostile code in Blender's own Python, confined as every Blender is, and its log."""
    limits = Limits(memory=512 * 2**20, processes=64)
    blender = choose(None)
    bounds = Bounds.make(limits)
    bounds.remove()
    if not (
        {"pids", "memory"} <= set(bounds.groups) or os.getuid() != 0 or os.access("/usr/bin/setpriv", os.X_OK)
    ):
        pytest.skip(f"neither cgroups nor another user can bound a child here: {bounds.reasons}")
    code = ATTACK.format(secret=str(room.inputs.parent / "secret"), port=listener.getsockname()[1])
    program = Program((blender.command[0], "-I", "-c", code), blender.folders)
    child = Child(program, room, {}, limits)
    log = FileLog(tmp_path / "log")
    try:
        yield child, log
    finally:
        child.end(politely=False)


def answer(child: Child, log: FileLog) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = child.receive(0.2, log)
        if found is not None:
            return found
    raise AssertionError("the attacker said nothing")


def test_every_door_is_shut_before_the_code_runs(
    attacker: tuple[Child, FileLog], listener: socket.socket, confined: str
) -> None:
    child, log = attacker
    # what holds is read back while the attacker has done nothing yet
    found = answer(child, log)
    holds = child.describe()
    assert found["allocate"] == "MemoryError"
    assert "at most 0.50 GiB of private memory" in holds
    # where Python lies in root's own home, a child without mounts of its own stays root, and says so
    stays_root = confined == "plain" and os.getuid() == 0 and "as root" in holds
    if not stays_root:
        assert f"as user {found['user']}" in holds
        assert found["user"] != 0
        assert "at most" in holds
        assert found["read"] in ("FileNotFoundError", "PermissionError")
        assert found["write"] in ("FileNotFoundError", "PermissionError", "OSError")
        assert SECRET not in json.dumps(found)
    assert "pids cgroup of 64 processes" in holds or not stays_root
    assert not {name for name in found["environment"] if name.startswith(("FARM", "AWS", "SSH"))}
    if confined == "bubblewrap":
        assert found["climb"] == "FileNotFoundError"
        assert found["connect"] in ("ConnectionRefusedError", "OSError", "TimeoutError")
        with pytest.raises(BlockingIOError):
            listener.accept()
    child._process.stdin.write(b"\n")
    child._process.stdin.flush()
    assert answer(child, log)["forks"] < 64


def test_memory_page_by_page_ends_the_child_and_not_the_slot(attacker: tuple[Child, FileLog]) -> None:
    child, log = attacker
    answer(child, log)
    child._process.stdin.write(b"\n\n")
    child._process.stdin.flush()
    answer(child, log)
    with pytest.raises((ChildDied, TaskFailed)):
        answer(child, log)
    assert child.peak() < 600 * 2**20
