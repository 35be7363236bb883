"""Tickets over a real broker: one queue a slot, purge, a broker that restarts, a real Celery worker."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farm.broker.connection import redis_client
from farm.broker.embedded import EmbeddedBroker
from farm.broker.tickets import VISIBILITY_TIMEOUT_S, WORKER_OPTIONS, TicketQueue, celery_app, queue_name
from farm.errors import Unavailable
from farm.records import Ticket, TicketEntry
from tests.integration.farm.broker.conftest import wait_until

WORKER = """
import sys
from farm.broker.tickets import TASK_NAME, celery_app
from farm.records import Ticket
app = celery_app(sys.argv[1])
@app.task(name=TASK_NAME)
def ticket(data):
    entries = Ticket.from_json(data).entries
    with open(sys.argv[3], "a") as out:
        out.write(" ".join(f"{e.task_id}:{e.epoch}" for e in entries) + "\\n")
app.worker_main(["worker", "-P", "solo", "-Q", sys.argv[2], "-l", "warning", *sys.argv[4:]])
"""


def ticket(slot: str, *names: str) -> Ticket:
    return Ticket(slot, tuple(TicketEntry(name, 1) for name in names))


def test_each_slot_has_a_queue_of_its_own(redis_url: str) -> None:
    queue = TicketQueue(redis_url)
    queue.send(ticket("a", "t1", "t2"))
    queue.send(ticket("b", "t3"))
    assert (queue.pending("a"), queue.pending("b"), queue.pending("c")) == (1, 1, 0)
    assert queue.purge("a") == 1
    assert (queue.pending("a"), queue.pending("b")) == (0, 1)
    assert queue.purge("a") == 0
    queue.close()


def test_forgotten_slot_leaves_nothing_in_the_broker(redis_url: str) -> None:
    queue = TicketQueue(redis_url)
    queue.send(ticket("gone", "t1"))
    queue.forget("gone")
    assert redis_client(redis_url, timeout_s=5).keys("*gone*") == []
    queue.close()


def test_settings_let_no_long_task_start_twice(redis_url: str) -> None:
    conf = celery_app(redis_url).conf
    assert conf.broker_transport_options["visibility_timeout"] == VISIBILITY_TIMEOUT_S == 86_400
    assert conf.accept_content == ["json"]
    assert not conf.task_acks_late
    assert conf.worker_prefetch_multiplier == 1
    assert conf.result_backend is None


def test_queue_says_that_the_broker_is_away_and_recovers(broker: EmbeddedBroker) -> None:
    queue = TicketQueue(broker.url)
    queue.send(ticket("a", "t1"))
    pid = broker.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: broker.pid not in (None, pid) and broker.ping())
    assert queue.pending("a") == 1
    queue.send(ticket("b", "t2"))
    assert queue.pending("b") == 1
    broker.stop()
    for call in (
        lambda: queue.send(ticket("a", "t3")),
        lambda: queue.pending("a"),
        lambda: queue.purge("a"),
        queue.ping,
    ):
        with pytest.raises(Unavailable, match="FARM_BROKER_URL"):
            call()
    with EmbeddedBroker(broker.folder.parent):
        queue.ping()
        assert queue.purge("a") == 1
        queue.send(ticket("a", "t4"))
        assert (queue.purge("a"), queue.purge("b")) == (1, 1)
    queue.close()


def test_new_ticket_takes_the_place_of_a_stale_one(redis_url: str) -> None:
    queue = TicketQueue(redis_url)
    for name in ("t1", "t2", "t3"):
        queue.send(ticket("a", name))
    assert queue.pending("a") == 1
    (message,) = redis_client(redis_url, timeout_s=5).lrange("slot.a", 0, -1)
    assert b"t3" in base64.b64decode(json.loads(message)["body"])
    queue.close()


def test_real_worker_gets_its_tickets_over_the_socket_and_through_a_restart(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.touch()
    words = [sys.executable, "-c", WORKER, broker.url, queue_name("a"), str(out), *WORKER_OPTIONS]
    worker = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    queue = TicketQueue(broker.url)
    try:
        queue.send(ticket("b", "other"))
        queue.send(ticket("a", "t1", "t2"))
        wait_until(lambda: out.read_text() == "t1:1 t2:1\n", 60)
        pid = broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: broker.pid not in (None, pid) and broker.ping())
        queue.send(ticket("a", "t3"))
        wait_until(lambda: out.read_text() == "t1:1 t2:1\nt3:1\n", 60)
        assert queue.pending("a") == 0
        assert queue.pending("b") == 1
    finally:
        worker.kill()
        worker.wait()
        queue.close()
