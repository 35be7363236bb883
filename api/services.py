"""What the endpoints work with, made once by the application factory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Protocol

import sqlalchemy as sa
from fastapi import Depends, Request

from api.live import LiveFeed
from farm.db.connect import Database
from farm.keyring import Keyring
from farm.settings import Settings
from farm.stores import Store


class Waker(Protocol):
    """What the API needs of :class:`farm.broker.wakes.Wakes`."""

    def wake(self, channel: str) -> bool:
        """Wake the listeners of a channel; whether the broker took it."""

    def wait(self, channels: str | list[str], timeout_s: float) -> bool:
        """Wait for a wake on a channel."""


@dataclass(frozen=True, slots=True)
class Services:
    """Settings, database, store, wakes, live feed and keyring of one application."""

    settings: Settings
    db: Database
    store: Store
    wakes: Waker
    feed: LiveFeed
    keyring: Keyring

    @contextmanager
    def writing(self, *channels: str) -> Iterator[sa.Connection]:
        """A write transaction; after its commit these channels and every event reader are woken."""
        with self.db.write() as conn:
            yield conn
        self.wake(*channels)

    def wake(self, *channels: str) -> None:
        """Wake channels and event readers; a broker that is away costs only promptness."""
        for channel in (*channels, "events"):
            self.wakes.wake(channel)
        self.feed.notify()


def services_in(request: Request) -> Services:
    """The services of the application that this request came to."""
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


# async, so that it costs no hop to a thread
async def services_of(request: Request) -> Services:
    """The application's services, as a dependency."""
    return services_in(request)


Use = Annotated[Services, Depends(services_of)]
