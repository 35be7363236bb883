"""What a confined child can reach. The child here runs code of the test's own, as a hostile scene might."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.render.bounds import Bounds, Limits
from jobs.render.sandbox import Room, confinement, farm_python, seal

ATTACK = """
import json, os, socket
def tries(action):
    try:
        action()
        return "done"
    except Exception as error:
        return type(error).__name__
inputs, output, secret, port = {arguments!r}
print(json.dumps({{
    "read_input": tries(lambda: open(inputs + "/scene.xml").read()),
    "write_input": tries(lambda: open(inputs + "/scene.xml", "w").write("x")),
    "read_secret": tries(lambda: open(secret).read()),
    "write_output": tries(lambda: open(output + "/made", "w").write("x")),
    "write_code": tries(lambda: open({code!r}, "w").write("x")),
    "connect": tries(lambda: socket.create_connection(("127.0.0.1", port), 2)),
    "environment": sorted(os.environ),
    "processes": len([p for p in os.listdir("/proc") if p.isdigit()]) if os.path.isdir("/proc") else 0,
}}))
"""


def attack(room: Room, secret: Path, port: int, as_user: int | None = None) -> dict[str, Any]:
    """Run the attack inside ``room``; ``-m timeit`` runs any code given as an argument."""
    inside = seal(farm_python("timeit"), room, {"GIVEN": "1"})
    code = ATTACK.format(
        arguments=(str(inside.inputs), str(inside.output), str(secret), port), code=str(Path(__file__))
    )
    program = farm_python("timeit", "-n", "1", "-r", "1", "-s", code, "pass")
    sealed = seal(program, room, {"GIVEN": "1"})
    if sealed.user is not None:
        os.chown(room.output, sealed.user, sealed.user)
    prefix = ["setpriv", f"--reuid={as_user}", f"--regid={as_user}", "--clear-groups"] if as_user else []
    done = subprocess.run(
        [*prefix, *sealed.argv], env=sealed.env, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    return answer


@pytest.fixture
def room() -> Iterator[Room]:
    """Inputs, an output folder, and a secret beside them, in a folder of its own that others may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "in").mkdir()
        (folder / "out").mkdir()
        (folder / "in" / "scene.xml").write_text("<scene/>")
        (folder / "secret").write_text("s3cret")
        (folder / "out").chmod(0o777)
        yield Room(folder / "in", folder / "out")


@pytest.fixture
def listener() -> Any:
    """A server of this test on the loopback address; it must see no connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def users() -> list[int | None]:
    """Us, and an unprivileged user where we may become one."""
    return [None, 65534] if os.getuid() == 0 else [None]


@pytest.mark.parametrize("user", users(), ids=lambda user: "unprivileged" if user else "as-we-are")
def test_bubblewrap_leaves_only_inputs_and_output(
    room: Room, listener: Any, user: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if user:
        # as the farm of an ordinary user would find it
        monkeypatch.setattr(os, "getuid", lambda: user)
    confinement.cache_clear()
    if confinement().name != "bubblewrap":
        pytest.skip(f"bubblewrap does not work here: {confinement().reason}")
    if user:
        # our own Python may lie in a home that the other user cannot enter
        if not Path("/usr/bin/python3").exists():
            pytest.skip("there is no Python that every user can read")
        for name, value in (("executable", "/usr/bin/python3"), ("prefix", "/usr"), ("base_prefix", "/usr")):
            monkeypatch.setattr(sys, name, value)
        monkeypatch.setattr(sys, "path", [])
    try:
        found = attack(room, room.inputs.parent / "secret", listener.getsockname()[1], user)
    finally:
        confinement.cache_clear()
    assert found["read_input"] == "done"
    assert found["write_output"] == "done"
    assert found["write_input"] != "done"
    assert found["write_code"] != "done"
    assert found["read_secret"] == "FileNotFoundError"
    assert found["connect"] != "done"
    assert found["processes"] <= 4
    assert set(found["environment"]) <= {
        "GIVEN", "HOME", "LC_ALL", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH",
    }  # fmt: skip
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert (room.output / "made").read_text() == "x"
    assert (room.inputs / "scene.xml").read_text() == "<scene/>"


def test_without_bubblewrap_the_environment_is_still_empty_and_the_reason_is_told(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_SANDBOX", "plain")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    confinement.cache_clear()
    try:
        assert confinement().describe() == "plain (FARM_SANDBOX=plain)"
        sealed = seal(farm_python("json.tool"), room, {"GIVEN": "1"})
        assert "AWS_SECRET_ACCESS_KEY" not in sealed.env
        assert sealed.env["GIVEN"] == "1"
    finally:
        confinement.cache_clear()


def test_a_child_gives_up_new_privileges_and_core_files_and_is_bounded_in_memory(
    room: Room, confined: str
) -> None:
    code = (
        "import resource;"
        "print(open('/proc/self/status').read().split('NoNewPrivs:')[1].split()[0]);"
        "print(resource.getrlimit(resource.RLIMIT_CORE)[0]);"
        "exec('try:\\n    bytearray(2 ** 29)\\nexcept MemoryError:\\n    print(\\'bounded\\')')"
    )
    bounds = Bounds.make(Limits(2**28, 64))
    try:
        program = farm_python("timeit", "-n", "1", "-r", "1", "-s", code, "pass")
        sealed = seal(program, room, {}, bounds)
        done = subprocess.run(
            sealed.argv, env=sealed.env, capture_output=True, check=True, timeout=60, text=True
        )
    finally:
        bounds.remove()
    assert done.stdout.split()[:3] == ["1", "0", "bounded"]
