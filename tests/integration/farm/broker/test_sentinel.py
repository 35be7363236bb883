"""Failover by Sentinel, with a real master, replica and sentinel."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from farm.broker.tickets import TicketQueue
from farm.broker.wakes import Wakes
from farm.errors import Unavailable
from farm.records import Ticket, TicketEntry


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Farm:
    """One master, one replica, one sentinel that decides alone."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("Sentinel comes with the Debian package redis-server")
        self.program, self.folder, self.stack = program, folder, stack
        self.ports = [free_port() for _ in range(3)]
        self.master = self.run(self.ports[0], "")
        self.run(self.ports[1], f"replicaof 127.0.0.1 {self.ports[0]}")
        self.run(
            self.ports[2],
            f"sentinel monitor m 127.0.0.1 {self.ports[0]} 1\nsentinel down-after-milliseconds m 500\n"
            "sentinel failover-timeout m 3000\n",
            "--sentinel",
        )
        self.url = f"sentinel://127.0.0.1:{self.ports[2]}?master=m"

    def run(self, port: int, extra: str, *options: str) -> subprocess.Popen[bytes]:
        folder = self.folder / str(port)
        folder.mkdir()
        config = folder / "redis.conf"
        config.write_text(f"port {port}\nbind 127.0.0.1\ndir {folder}\n{extra}\n")
        if not options:
            config.write_text(config.read_text() + 'save ""\nrepl-diskless-sync-delay 0\n')
        process = subprocess.Popen([self.program, str(config), *options], stdout=subprocess.DEVNULL)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        wait(lambda: redis.Redis(port=port).ping())
        return process


def wait(condition: object, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if condition():  # type: ignore[operator]
                return
        except (redis.RedisError, Unavailable):
            pass
        assert time.monotonic() < deadline, "the condition did not come"
        time.sleep(0.05)


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    with ExitStack() as stack:
        yield Farm(tmp_path, stack)


def test_tickets_and_wakes_follow_the_master(farm: Farm) -> None:
    sentinel = redis.Redis(port=farm.ports[2], decode_responses=True)
    wait(lambda: len(sentinel.sentinel_slaves("m")) == 1)
    wait(lambda: redis.Redis(port=farm.ports[1]).info("replication")["master_link_status"] == "up")
    queue, wakes = TicketQueue(farm.url), Wakes(farm.url)
    ticket = Ticket("a", (TicketEntry("t1", 1),))
    queue.send(ticket)
    assert queue.pending("a") == 1
    assert wakes.wait("scheduler", 5)
    wait(lambda: redis.Redis(port=farm.ports[1]).llen("slot.a") == 1)
    farm.master.kill()
    farm.master.wait()
    wait(lambda: queue.pending("a") == 1)

    def sent() -> bool:
        queue.send(ticket)
        return True

    wait(sent)
    assert queue.pending("a") == 1
    wait(lambda: wakes.wake("scheduler"))
    queue.close()
    wakes.close()
