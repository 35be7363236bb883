"""The demo's farm: a `farm up` in a process of its own, with a fresh data folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

from api.cli import terminal
from api.cli.demo.interrupts import Interrupts
from api.cli.running import listen
from api.cli.running.children import farm_command, farm_environment
from api.cli.running.lock import DataLock, read_note
from farm.client.credentials import Credentials, forget, stored_for
from farm.errors import Conflict, InvalidInput, Unavailable
from farm.settings import Settings

READY_S = 240.0
STOP_S = 60.0
# the demo's farm shares nothing with a farm that the environment describes
_NOT_INHERITED = ("FARM_DATABASE_URL", "FARM_BROKER_URL", "FARM_STORE_URL", "FARM_DATA", "FARM_LISTEN")


class OwnFarm:
    """A farm that lives as long as the ``with`` block. Its data goes with it, unless something failed."""

    def __init__(self, output: Path, interrupts: Interrupts) -> None:
        self.output = output
        self.data = output.absolute() / ".farm"
        self.log = output.absolute() / "farm-up.log"
        self.credentials: Credentials
        self._interrupts = interrupts
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the farm's own process lives."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> OwnFarm:
        self._clear()
        try:
            with self._interrupts.held():
                self._start()
            self._wait()
        except BaseException:
            self._end(keep=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(keep=kind is not None and kind is not KeyboardInterrupt)

    def _clear(self) -> None:
        """Remove what an earlier demo left in the data folder; never a folder that is not a farm's."""
        try:
            self.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"cannot use --output {self.output}: {error.strerror}") from None
        if not self.data.exists():
            return
        if not (self.data / "up.lock").exists() and any(self.data.iterdir()):
            raise InvalidInput(f"{self.data} is no demo's folder; choose another --output")
        try:
            lock = DataLock(self.data)
        except Conflict:
            raise Conflict(
                f"another demo runs in {self.output}: wait for it, stop it, or choose another --output"
            ) from None
        shutil.rmtree(self.data, ignore_errors=True)
        lock.release()

    def _start(self) -> None:
        environment = farm_environment({"FARM_DATA": str(self.data), "FARM_LISTEN": _address()})
        for name in _NOT_INHERITED:
            if name not in ("FARM_DATA", "FARM_LISTEN"):
                environment.pop(name, None)
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                farm_command("up"),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        terminal.say("starting a farm")

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + READY_S
        while not read_note(self.data).get("ready"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"the demo's farm did not come up; {self.log} ends:\n{self._tail()}")
            time.sleep(0.05)
        found = stored_for(self.data)
        if found is None:
            raise Unavailable(f"the demo's farm kept no key; see {self.log}")
        self.credentials = found
        terminal.say(f"the farm is up at {found.url}")

    def _end(self, *, keep: bool) -> None:
        with self._interrupts.held(drop=True):
            if self._process is not None:
                # what runs is parked first, which takes some seconds
                terminal.say("stopping the farm")
                self._stop(self._process)
            forget(self.data)
            if keep:
                terminal.say(f"the farm's logs are kept in {self.log} and {self.data / 'service-logs'}")
            else:
                shutil.rmtree(self.data, ignore_errors=True)
                self.log.unlink(missing_ok=True)

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        for more in (True, False):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S if more else 15.0)
                return
            # a second signal makes it hurry
            process.terminate()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _tail(self) -> str:
        return self.log.read_bytes()[-3000:].decode(errors="replace")


def _address() -> str:
    """FARM_LISTEN where it is set, else the usual port if it is free, else a free one."""
    named = os.environ.get("FARM_LISTEN")
    if named:
        return named
    usual = Settings.model_fields["listen"].default
    try:
        listen.bind(usual).close()
    except Conflict:
        return "127.0.0.1:0"
    return str(usual)
