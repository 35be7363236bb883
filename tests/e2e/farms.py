"""A real `farm up` for end-to-end tests, and what is left of it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from api.cli.running.children import farm_command, farm_environment
from api.cli.running.lock import read_note
from farm.client import Credentials, FarmClient
from farm.client.credentials import read_key_file

DEADLINE_S = 300.0
SHORT = {
    "FARM_PARK_GRACE_S": "3",
    "FARM_CANCEL_GRACE_S": "2",
    "FARM_AGENT_POLL_S": "0.2",
    "FARM_FREE_SPACE_FLOOR": "1",
}
SCENE = """<scene version="3.0.0">
  <integrator type="path"><integer name="max_depth" value="3"/></integrator>
  <sensor type="perspective"><float name="fov" value="40"/>
    <transform name="to_world"><lookat origin="0, 1, 5" target="0, 0, 0" up="0, 1, 0"/></transform>
    <film type="hdrfilm"><integer name="width" value="64"/><integer name="height" value="36"/></film>
    <sampler type="independent"><integer name="sample_count" value="2"/></sampler></sensor>
  <shape type="sphere"><bsdf type="diffuse"><rgb name="reflectance" value="0.8, 0.3, 0.2"/></bsdf></shape>
  <emitter type="constant"/>
</scene>
"""
SPEC = {
    "scene": "scene.xml",
    "frames": "1-4",
    "resolution": [64, 36],
    "samples": 2,
    "camera": {"type": "orbit"},
}


def until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition; the tests fail when it does not come about."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        time.sleep(0.05)


def processes_of(folder: Path) -> dict[int, str]:
    """Living processes whose environment or command line names the folder: pid to command line."""
    needle = str(folder).encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            if not command or needle not in command + (entry / "environ").read_bytes():
                continue
        except OSError:
            continue
        found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def environment(folder: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a `farm` command whose farm and key file lie in ``folder``."""
    values = {
        "FARM_DATA": str(folder / "farm"),
        "FARM_LISTEN": "127.0.0.1:0",
        "XDG_CONFIG_HOME": str(folder / "config"),
        **SHORT,
        **(more or {}),
    }
    env = farm_environment(values)
    # parent.VARIABLE stays: what a killed test run started ends with it
    for name in ("FARM_KEY_FILE", "FARM_DATABASE_URL", "FARM_BROKER_URL", "FARM_STORE_URL"):
        env.pop(name, None)
    return env


class Up:
    """`farm up` in a folder of the test's own."""

    def __init__(self, folder: Path, more: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.data = folder / "farm"
        self.output = folder / "up.log"
        self._more = more

    def start(self) -> Up:
        """Start it and wait until it is ready."""
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                farm_command("up"),
                env=environment(self.folder, self._more),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until(lambda: read_note(self.data).get("ready") or self.process.poll() is not None)
        assert self.process.poll() is None, self.text()
        return self

    def text(self) -> str:
        """What it printed."""
        return self.output.read_text()

    @property
    def url(self) -> str:
        return str(read_note(self.data)["url"])

    @property
    def key(self) -> str:
        """The first key, from its key file."""
        old = os.environ.get("XDG_CONFIG_HOME")
        os.environ["XDG_CONFIG_HOME"] = str(self.folder / "config")
        try:
            return str(read_key_file()["key"])
        finally:
            if old is None:
                del os.environ["XDG_CONFIG_HOME"]
            else:
                os.environ["XDG_CONFIG_HOME"] = old

    def client(self) -> FarmClient:
        """A client with the first key."""
        return FarmClient.of(Credentials(self.url, self.key))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal it and wait for its end; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
