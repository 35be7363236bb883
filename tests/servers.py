"""Real servers for tests: PostgreSQL and Redis, started in a temporary folder and ended with the session.

Both are children that get a signal when the test process dies (``setpriv --pdeathsig``), so that a killed
test run leaves none behind.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
import redis

_DEADLINE_S = 60.0


def _setpriv(signal: str, user: pwd.struct_passwd | None = None) -> list[str]:
    program = shutil.which("setpriv")
    if program is None:
        if user is not None:
            raise RuntimeError("PostgreSQL refuses to run as root: install util-linux for `setpriv`")
        return []
    words = [program, "--pdeathsig", signal]
    if user is not None:
        words += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return words


class PostgresServer:
    """A PostgreSQL server on a unix socket. PostgreSQL refuses to run as root."""

    def __init__(self, *, durable: bool = False) -> None:
        """``durable``: what was committed outlives :meth:`halt`; slower."""
        self._durable = durable
        self._bin = _postgres_bin()
        self._user: pwd.struct_passwd | None = None
        if os.geteuid() == 0:
            self._user = _unprivileged_user()
        self._folder = Path(tempfile.mkdtemp(prefix="stillframe-pg-", dir="/tmp"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running postmaster, for tests that stop or kill it."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Make a cluster (first time) and wait until it answers."""
        if not (self._folder / "data").exists():
            if self._user is not None:
                os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
            words = [str(self._bin / "initdb"), "-D", str(self._folder / "data"), "-U", "postgres"]
            words += ["-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
            made = subprocess.run(
                [*_setpriv("KILL", self._user), *words], cwd=self._folder, capture_output=True, check=False
            )
            if made.returncode:
                raise RuntimeError(f"initdb failed: {made.stderr.decode(errors='replace')}")
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._folder),
            "fsync": "off",
            "synchronous_commit": "on" if self._durable else "off",
            "full_page_writes": "off",
            "max_connections": "200",
            "shared_buffers": "64MB",
            "log_min_messages": "warning",
        }
        words = [str(self._bin / "postgres"), "-D", str(self._folder / "data")]
        for name, value in options.items():
            words += ["-c", f"{name}={value}"]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_setpriv("QUIT", self._user), *words], cwd=self._folder, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            try:
                psycopg.connect(self.dsn("postgres"), autocommit=True).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    text = (self._folder / "server.log").read_text(errors="replace")
                    raise RuntimeError(f"PostgreSQL did not start:\n{text[-2000:]}") from None
                time.sleep(0.02)

    def dsn(self, database: str) -> str:
        """libpq connection string."""
        return f"host={self._folder} user=postgres dbname={database}"

    def url(self, database: str) -> str:
        """SQLAlchemy URL."""
        return f"postgresql+psycopg://postgres@/{database}?host={self._folder}"

    def create_database(self, name: str) -> str:
        """Make an empty database and return its SQLAlchemy URL."""
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, ending its connections."""
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())

    def end_connections(self, database: str) -> None:
        """End every connection to a database, as left by a test that failed half-way."""
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", (database,)
            )

    def halt(self) -> None:
        """End the server at once; :meth:`start` brings it back with what was committed."""
        if self._process is not None:
            self._process.send_signal(3)  # SIGQUIT: immediate shutdown
            self._process.wait(timeout=_DEADLINE_S)
            self._process = None

    def stop(self) -> None:
        """End the server and remove its folder."""
        self.halt()
        shutil.rmtree(self._folder, ignore_errors=True)


class RedisServer:
    """A redis-server on a loopback port of its own; ``halt`` and ``start`` play a broker that goes away."""

    def __init__(self) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise RuntimeError("tests need a Redis: apt-get install redis-server")
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="stillframe-redis-", dir="/tmp"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Redis URL, database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start on the same port as before, or a free one the first time, and wait until it answers."""
        for _ in range(5):
            port = self.port or _free_port()
            words = [self._program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
            words += ["--appendonly", "no", "--dir", str(self._folder), "--daemonize", "no"]
            with (self._folder / "server.log").open("ab") as log:
                self._process = subprocess.Popen([*_setpriv("KILL"), *words], stdout=log, stderr=log)
            if self._answers(port):
                self.port = port
                return
        text = (self._folder / "server.log").read_text(errors="replace")
        raise RuntimeError(f"redis-server did not start:\n{text[-2000:]}")

    def _answers(self, port: int) -> bool:
        assert self._process is not None
        client = redis.Redis(port=port)
        deadline = time.monotonic() + _DEADLINE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                # another server may own the port: ours must be the one that answers
                if client.info("server")["process_id"] == self._process.pid:
                    return True
                break
            except redis.RedisError:
                time.sleep(0.01)
        self.halt()
        return False

    def flush(self) -> None:
        """Remove every key."""
        redis.Redis(port=self.port).flushall()

    def halt(self) -> None:
        """Kill the server; its memory is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=_DEADLINE_S)
            self._process = None

    def stop(self) -> None:
        """Kill the server and remove its folder."""
        self.halt()
        shutil.rmtree(self._folder, ignore_errors=True)


def _postgres_bin() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    if found:
        return found[-1].parent
    program = shutil.which("initdb")
    if program is None:
        raise RuntimeError(
            "PostgreSQL is not installed, but these tests run on it as well: apt-get install postgresql, "
            "or set FARM_TEST_DATABASES=sqlite to leave it out"
        )
    return Path(program).resolve().parent


def _unprivileged_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody`")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
