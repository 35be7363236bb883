"""A child process that is started again when it dies, and ended with its whole group."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import api
from api.cli.running import parent

BACKOFF_S = 0.5
BACKOFF_MAX_S = 30.0
STEADY_S = 60.0
LOG_KEPT = 16 * 2**20


def farm_command(*words: str) -> list[str]:
    """Command line that runs this very installation; ``-P``: never modules of the folder we stand in."""
    return [sys.executable, "-P", "-m", "api.cli.main", *words]


def farm_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Environment of a child: ours, without the user's key, with this installation importable."""
    root = str(Path(api.__file__).resolve().parents[1])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    inherited = {name: value for name, value in os.environ.items() if name not in ("FARM_KEY", "FARM_URL")}
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONUNBUFFERED": "1",
        parent.VARIABLE: str(os.getpid()),
        **more,
    }


class Child:
    """One supervised process. Its output goes to ``log``; call :meth:`tend` often, from one thread.

    That thread must live as long as the child: the parent-death signal follows the thread that started it.
    """

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        pass_fds: Sequence[int] = (),
        grace_s: float = 10.0,
    ) -> None:
        self.name = name
        self.log = log
        self.grace_s = grace_s
        self.restarts = 0
        self._words = list(words)
        self._environment = dict(environment)
        self._pass_fds = tuple(pass_fds)
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._again_at: float | None = None
        self._backoff = BACKOFF_S
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The process now, ``None`` between two lives."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start the process."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LOG_KEPT:
            self.log.replace(self.log.with_suffix(".log.old"))
        with self.log.open("ab") as output:
            # a session of its own: Ctrl-C reaches `farm up` alone, which ends the rest in order
            self._process = subprocess.Popen(
                self._words,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=self._pass_fds,
            )
        self._began = time.monotonic()
        self._again_at = None

    def tend(self) -> int | None:
        """Notice a death and start again after the back-off; returns the exit code of a fresh death."""
        if self._stopping:
            return None
        now = time.monotonic()
        if self._again_at is not None:
            if now >= self._again_at:
                self.restarts += 1
                self.start()
            return None
        if self._process is None or self._process.poll() is None:
            return None
        code = self._process.returncode
        self._end_group()
        if now - self._began > STEADY_S:
            self._backoff = BACKOFF_S
        self._again_at = now + self._backoff
        self._backoff = min(self._backoff * 2, BACKOFF_MAX_S)
        return code

    def ask_to_stop(self) -> None:
        """SIGTERM; it will not be started again."""
        self._stopping = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process; whether it has ended."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._end_group()
        return True

    def kill(self) -> None:
        """End the process and its group at once."""
        if self._process is not None:
            self._end_group()
            self._process.wait()

    def log_tail(self, nbytes: int = 2000) -> str:
        """The end of its output."""
        try:
            return self.log.read_bytes()[-nbytes:].decode(errors="replace")
        except OSError:
            return "(no output)"

    def _end_group(self) -> None:
        # the group's id stays taken while a member lives, so this hits what the child left behind or nothing
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
