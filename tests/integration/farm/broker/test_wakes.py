"""Wakes over a real broker: prompt, kept between waits, bounded, and polling when the broker is away."""

from __future__ import annotations

import threading
import time

from farm.broker.connection import redis_client
from farm.broker.embedded import EmbeddedBroker
from farm.broker.wakes import Wakes
from tests.integration.farm.broker.conftest import wait_until


def listening(url: str, *channels: str) -> Wakes:
    wakes = Wakes(url)
    assert wakes.wait(list(channels), 5)  # the first wait says: look
    return wakes


def test_first_wait_says_look_because_a_wake_may_have_been_missed(redis_url: str) -> None:
    wakes = Wakes(redis_url)
    assert wakes.wait("scheduler", 5)
    assert not wakes.wait("scheduler", 0.05)
    wakes.close()


def test_wake_ends_a_wait_at_once(redis_url: str) -> None:
    listener, sender = listening(redis_url, "scheduler"), Wakes(redis_url)
    timer = threading.Timer(0.2, sender.wake, ["scheduler"])
    timer.start()
    began = time.monotonic()
    assert listener.wait("scheduler", 30)
    assert time.monotonic() - began < 10
    timer.join()


def test_wake_while_busy_is_kept_and_many_count_as_one(redis_url: str) -> None:
    listener, sender = listening(redis_url, "scheduler"), Wakes(redis_url)
    for _ in range(50):
        assert sender.wake("scheduler")
    assert listener.wait("scheduler", 5)
    assert not listener.wait("scheduler", 0.05)


def test_every_listener_of_a_channel_is_woken_and_no_other(redis_url: str) -> None:
    first, second = listening(redis_url, "events"), listening(redis_url, "events", "node.1")
    other = listening(redis_url, "scheduler")
    Wakes(redis_url).wake("events")
    assert first.wait("events", 5)
    assert second.wait(["events", "node.1"], 5)
    assert not other.wait("scheduler", 0.05)
    Wakes(redis_url).wake("node.1")
    assert second.wait(["events", "node.1"], 5)
    assert not first.wait("events", 0.05)


def test_what_listeners_leave_behind_expires(redis_url: str) -> None:
    listener = listening(redis_url, "scheduler")
    Wakes(redis_url).wake("scheduler")
    client = redis_client(redis_url, timeout_s=5)
    keys = client.keys("stillframe.wake.*")
    assert len(keys) == 2
    assert all(0 < client.ttl(key) <= 120 for key in keys)
    listener.close()


def test_without_a_broker_waits_are_polls() -> None:
    wakes = Wakes(None)
    began = time.monotonic()
    assert not wakes.wait("scheduler", 0.1)
    assert time.monotonic() - began >= 0.09
    assert not wakes.wake("scheduler")


def test_close_ends_a_wait_in_another_thread(redis_url: str) -> None:
    listener = listening(redis_url, "scheduler")
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(listener.wait("scheduler", 600)))
    thread.start()
    listener.close()
    thread.join(30)
    assert answers == [False]


def test_broker_that_goes_away_means_polling_and_then_a_look(broker: EmbeddedBroker) -> None:
    listener, sender = listening(broker.url, "scheduler"), Wakes(broker.url)
    broker.stop()
    began = time.monotonic()
    assert not listener.wait("scheduler", 0.3)
    assert 0.2 < time.monotonic() - began < 10
    assert not sender.wake("scheduler")
    with EmbeddedBroker(broker.folder.parent):
        assert listener.wait("scheduler", 30)  # it may have missed one
        wait_until(lambda: sender.wake("scheduler"))
        assert listener.wait("scheduler", 30)
