"""Broker URLs: what is taken, what is refused, and how."""

from __future__ import annotations

import pytest

from farm.broker.connection import BrokerUrl, redis_client
from farm.errors import InvalidInput


@pytest.mark.parametrize(
    ("url", "celery", "master"),
    [
        ("redis://h:1/2", "redis://h:1/2", None),
        ("rediss://h:1/2", "rediss://h:1/2", None),
        ("redis+socket:///run/x.sock", "redis+socket:///run/x.sock", None),
        ("unix:///run/x.sock", "redis+socket:///run/x.sock", None),
        ("sentinel://a:1;sentinel://b:2/3?master=m", "sentinel://a:1;sentinel://b:2/3", "m"),
    ],
)
def test_urls_that_are_taken(url: str, celery: str, master: str | None) -> None:
    broker = BrokerUrl.parse(url)
    assert (broker.celery, broker.master) == (celery, master)
    assert broker.transport_options() == ({"master_name": master} if master else {})


@pytest.mark.parametrize(
    "url", ["amqp://h", "http://h", "h:6379", "", "sentinel://a:1", "sentinel://a?master="]
)
def test_other_urls_are_refused_and_the_setting_named(url: str) -> None:
    with pytest.raises(InvalidInput, match="FARM_BROKER_URL"):
        redis_client(url, timeout_s=1)
