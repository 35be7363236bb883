"""Tickets: what Celery carries from the scheduler to a slot, in a queue of that slot's own.

The database is the truth; a ticket that is lost, doubled or late changes nothing (epochs see to that). So
there is no result backend, no retry by Celery and no late acknowledgement, and the visibility timeout is a
day: nothing extends it while a task runs, and a shorter one would start long tasks again and again.
"""

from __future__ import annotations

import threading
from typing import Final

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from farm.broker.connection import BrokerUrl, redis_client
from farm.errors import Unavailable
from farm.records import Ticket

TASK_NAME: Final = "stillframe.ticket"
VISIBILITY_TIMEOUT_S: Final = 86_400
SOCKET_TIMEOUT_S: Final = 10.0
# kombu's own keys for a queue
_BINDINGS: Final = ("binding", "binding_permanent")

WORKER_OPTIONS: Final = ("--without-gossip", "--without-mingle", "--without-heartbeat")
"""Options of ``celery worker`` that a slot is started with: slots do not talk to each other."""


def queue_name(slot_id: str) -> str:
    """The name of a slot's own queue."""
    return f"slot.{slot_id}"


def celery_app(url: str) -> Celery:
    """The Celery application that carries tickets over the broker at ``url``.

    Raises :class:`farm.errors.InvalidInput` for a URL that is no broker's.
    """
    broker = BrokerUrl.parse(url)
    app = Celery("stillframe", broker=broker.celery, set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=False,
        task_store_errors_even_if_ignored=False,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "priority_steps": [0],
            "socket_timeout": SOCKET_TIMEOUT_S,
            "socket_connect_timeout": SOCKET_TIMEOUT_S / 2,
            **broker.transport_options(),
        },
    )
    return app


class TicketQueue:
    """Sends tickets, empties slots' queues, counts what waits. Safe to use from several threads.

    A call fails with :class:`Unavailable` while the broker is away and works again once it is back.
    """

    def __init__(self, url: str) -> None:
        self._app = celery_app(url)
        self._client = redis_client(url, timeout_s=SOCKET_TIMEOUT_S)
        self._lock = threading.Lock()

    def send(self, ticket: Ticket) -> None:
        """Put a ticket into its slot's queue, in place of whatever was in it.

        A slot gets a ticket when it is idle, so what still waits there is stale; there never is more than
        one ticket for a slot. Raises :class:`Unavailable`; whether the ticket went out is then unknown.
        """
        with self._lock:
            self.purge(ticket.slot_id)
            try:
                # one try here, one more on a fresh connection: the first finds out that the broker restarted
                self._app.send_task(
                    TASK_NAME,
                    args=[ticket.to_json()],
                    queue=queue_name(ticket.slot_id),
                    ignore_result=True,
                    retry=True,
                    retry_policy={"max_retries": 1, "interval_start": 0.05, "interval_max": 0.05},
                )
            except (OperationalError, RedisError, OSError) as error:
                raise _away(error) from error

    def purge(self, slot_id: str) -> int:
        """Empty a slot's queue; gives how many tickets were in it. Raises :class:`Unavailable`."""
        name = queue_name(slot_id)
        try:
            pipe = self._client.pipeline()
            pipe.llen(name)
            pipe.delete(name)
            return int(pipe.execute()[0])
        except (RedisError, OSError) as error:
            raise _away(error) from error

    def ping(self) -> None:
        """Make sure that the broker answers. Raises :class:`Unavailable`."""
        try:
            self._client.ping()
        except (RedisError, OSError) as error:
            raise _away(error) from error

    def pending(self, slot_id: str) -> int:
        """How many tickets wait in a slot's queue. Raises :class:`Unavailable`."""
        try:
            return int(self._client.llen(queue_name(slot_id)))
        except (RedisError, OSError) as error:
            raise _away(error) from error

    def forget(self, slot_id: str) -> None:
        """Remove all that the broker keeps for a slot that is gone for good."""
        name = queue_name(slot_id)
        try:
            self._client.delete(name, *(f"_kombu.{kept}.{name}" for kept in _BINDINGS))
        except (RedisError, OSError) as error:
            raise _away(error) from error

    def close(self) -> None:
        """Close every connection."""
        self._app.close()
        self._client.close()


def _away(error: Exception) -> Unavailable:
    detail = str(error) or type(error).__name__
    return Unavailable(f"the broker cannot be reached ({detail}): is it running at FARM_BROKER_URL?")
