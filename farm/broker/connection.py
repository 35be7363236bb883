"""One broker URL, read for Celery and for plain Redis commands alike.

============================================  =====================================================
``redis://host:6379/0``, ``rediss://…``       one server, over TCP or TLS
``redis+socket:///run/broker.sock``           one server, over a unix socket (the embedded broker)
``sentinel://a:26379;sentinel://b/0?master=m``  the server that Sentinel calls the master ``m``
============================================  =====================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis
from redis import sentinel as redis_sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from farm.errors import InvalidInput

SENTINEL_PORT = 26379


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """A checked broker URL: ``celery`` is what Celery takes, ``master`` is set for Sentinel alone."""

    celery: str
    master: str | None = None

    @classmethod
    def parse(cls, url: str) -> BrokerUrl:
        """Read a broker URL; raises :class:`InvalidInput` that names FARM_BROKER_URL."""
        scheme = url.partition("://")[0]
        if scheme == "sentinel":
            bare, _, query = url.partition("?")
            master = parse_qs(query).get("master", [""])[0]
            if not master:
                raise InvalidInput("FARM_BROKER_URL names Sentinel but no master: end it with ?master=NAME")
            return cls(bare, master)
        if scheme == "unix":
            return cls("redis+socket://" + url.removeprefix("unix://"))
        if scheme in ("redis", "rediss", "redis+socket"):
            return cls(url)
        raise InvalidInput(
            f"FARM_BROKER_URL has the scheme {scheme[:20]!r}: give redis://, rediss://, redis+socket:// or "
            "sentinel://"
        )

    def transport_options(self) -> dict[str, Any]:
        """What kombu needs beside the URL."""
        return {"master_name": self.master} if self.master else {}


def redis_client(url: str, *, timeout_s: float) -> redis.Redis:
    """A client of the broker that answers or fails within ``timeout_s``, and never retries by itself.

    Connects at its first command. Raises :class:`InvalidInput` for a URL that is no broker's.
    """
    broker = BrokerUrl.parse(url)
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
    }
    if broker.master:
        first = broker.celery.split(";")[0]
        path = urlsplit(broker.celery.split(";")[-1]).path.strip("/")
        hosts = [urlsplit(part) for part in broker.celery.split(";")]
        make: Any = redis_sentinel.Sentinel
        sentinel = make(
            [(part.hostname or "localhost", part.port or SENTINEL_PORT) for part in hosts],
            sentinel_kwargs={"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s},
            socket_connect_timeout=timeout_s,
            password=urlsplit(first).password,
            db=int(path or 0),
            **options,
        )
        client: redis.Redis = sentinel.master_for(broker.master, redis_class=redis.Redis)
        return client
    if broker.celery.startswith("redis+socket://"):
        return redis.Redis.from_url(broker.celery.replace("redis+socket://", "unix://", 1), **options)
    return redis.Redis.from_url(broker.celery, socket_connect_timeout=timeout_s, **options)
