"""The whole farm on one machine: broker, API, scheduler and node agent, started and stopped in order."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

import httpx
import sqlalchemy as sa

from api.cli.running.children import Child, farm_command, farm_environment
from api.cli.running.listen import FD_VARIABLE, listen_text, url_of
from api.cli.running.lock import DataLock
from farm.broker.embedded import EmbeddedBroker
from farm.db.connect import Database
from farm.db.tables import slots
from farm.errors import Unavailable
from farm.settings import Settings

READY_S = 180.0
LOOK_S = 0.1
TEND_S = 0.5
"""How often a farm at work looks after its processes: what has died is started after half a second anyway."""
FATAL_DEATHS = 3
SERVING = ("idle", "busy", "held")


class House:
    """Runs until told to stop. Every method belongs to one thread, the main one."""

    def __init__(
        self, settings: Settings, bound: socket.socket, lock: DataLock, say: Callable[[str], None]
    ) -> None:
        self.settings = settings
        self.url = url_of(bound)
        self._bound = bound
        self._lock = lock
        self._say = say
        self._broker: EmbeddedBroker | None = None
        self.children: list[Child] = []

    def start(self, stop: threading.Event) -> None:
        """Start everything and wait until the API answers and a slot is there, or ``stop`` is set.

        Raises :class:`farm.errors.Unavailable` with the end of the log of what did not come up.
        """
        broker_url = self.settings.broker_url
        if not broker_url:
            self._broker = EmbeddedBroker(self.settings.run_dir)
            broker_url = self._broker.start()
        environment = farm_environment(
            {
                "FARM_DATA": str(self.settings.data),
                "FARM_BROKER_URL": broker_url,
                "FARM_LISTEN": listen_text(self._bound),
            }
        )
        with_socket = environment | {FD_VARIABLE: str(self._bound.fileno())}
        node_grace = self.settings.park_grace_s + 15.0
        for name, env, fds, grace in (
            ("api", with_socket, (self._bound.fileno(),), 10.0),
            ("scheduler", environment, (), 10.0),
            ("node", environment, (), node_grace),
        ):
            log = self.settings.data / "service-logs" / f"{name}.log"
            child = Child(name, farm_command(name), env, log, pass_fds=(self._lock.fd, *fds), grace_s=grace)
            # in the list before it starts, so that stop() knows of it whatever happens
            self.children.append(child)
            child.start()
        self._wait_for(self._answers, "the API did not answer", stop)
        self._wait_for(self._serves, "no slot came up", stop)

    def run(self, stop: threading.Event) -> None:
        """Keep everything alive until ``stop`` is set."""
        while not stop.wait(TEND_S):
            self._tend()

    def stop(self, hurry: threading.Event) -> None:
        """End everything: the agent first, which parks its work; the broker last. ``hurry`` kills instead."""
        for names in (("node",), ("scheduler", "api")):
            ending = [child for child in self.children if child.name in names]
            for child in ending:
                child.ask_to_stop()
            for child in ending:
                self._wait_for_end(child, hurry)
        if self._broker is not None:
            self._broker.stop()

    def _wait_for_end(self, child: Child, hurry: threading.Event) -> None:
        deadline = time.monotonic() + child.grace_s
        while not child.wait(LOOK_S):
            if hurry.is_set() or time.monotonic() > deadline:
                self._say(f"{child.name} did not end in time; killing it")
                child.kill()
                return

    def slot_count(self) -> int:
        """Slots that serve or can serve now."""
        database = Database(self.settings.resolved_database_url)
        try:
            with database.read() as conn:
                query = sa.select(sa.func.count()).select_from(slots).where(slots.c.state.in_(SERVING))
                return int(conn.execute(query).scalar_one())
        finally:
            database.dispose()

    def _tend(self) -> None:
        for child in self.children:
            code = child.tend()
            if code is not None:
                self._say(f"{child.name} ended with code {code}; starting it again. Its log: {child.log}")

    def _wait_for(self, ready: Callable[[], bool], complaint: str, stop: threading.Event) -> None:
        deadline = time.monotonic() + READY_S
        while not stop.is_set() and not ready():
            self._tend()
            for child in self.children:
                if child.restarts >= FATAL_DEATHS:
                    raise Unavailable(
                        f"{child.name} keeps ending; the end of {child.log}:\n{child.log_tail()}"
                    )
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {child.log}\n{child.log_tail(800)}" for child in self.children)
                raise Unavailable(f"{complaint} within {READY_S:.0f} s\n{logs}")
            stop.wait(LOOK_S)

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", timeout=2.0).status_code == 200
        return False

    def _serves(self) -> bool:
        return self.slot_count() > 0
