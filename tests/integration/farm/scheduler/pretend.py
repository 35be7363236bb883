"""Slots without an engine: they take real tickets from the real broker, claim, and finish at once."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable

import redis
import sqlalchemy as sa

from farm.broker.connection import redis_client
from farm.broker.tickets import queue_name
from farm.broker.wakes import Wakes
from farm.db.connect import Database
from farm.lifecycle.claim import claim
from farm.lifecycle.finish import finish_many
from farm.records import AttemptReport, ClaimedTask, Ticket
from farm.states import AttemptState

_LEASE_S = 3.0
"""Short: a claim whose commit was not answered is forgotten here, and the lease brings the task back."""


def read_ticket(message: bytes) -> Ticket:
    """The ticket inside a message of Celery's."""
    (data,), _, _ = json.loads(base64.b64decode(json.loads(message)["body"]))
    return Ticket.from_json(data)


class PretendSlot(threading.Thread):
    """Takes tickets until stopped; ``drop`` says which tickets are popped and then forgotten."""

    def __init__(
        self, db: Database, url: str, slot_id: str, drop: Callable[[Ticket], bool] = lambda ticket: False
    ) -> None:
        super().__init__(daemon=True)
        self.db, self.slot_id, self.drop = db, slot_id, drop
        self.claimed: list[ClaimedTask] = []
        self.most_waiting = 0
        self.tickets = 0
        self.stopping = threading.Event()
        self._client = redis_client(url, timeout_s=5)
        self._wakes = Wakes(url)
        self._unsent: list[AttemptReport] = []

    def run(self) -> None:
        """Ticket after ticket; the broker or the database away is waited out, as an agent does."""
        while not self.stopping.is_set():
            try:
                self._finish()
                self.most_waiting = max(self.most_waiting, self._client.llen(queue_name(self.slot_id)))
                popped = self._client.brpop([queue_name(self.slot_id)], timeout=0.2)
                if popped is not None:
                    self._take(read_ticket(popped[1]))
            except (redis.RedisError, sa.exc.SQLAlchemyError):
                time.sleep(0.05)
        self._wakes.close()

    def _take(self, ticket: Ticket) -> None:
        self.tickets += 1
        if self.drop(ticket):
            return
        with self.db.write() as conn:
            begun = claim(conn, ticket, self.slot_id, "i", _LEASE_S)
        self.claimed += begun
        self._unsent = [
            AttemptReport(task.task_id, task.epoch, task.attempt_id, AttemptState.DONE, time.time())
            for task in begun
        ]
        for report in self._unsent:
            report.cost.slot_s = 0.01
        self._finish()

    def _finish(self) -> None:
        if self._unsent:
            with self.db.write() as conn:
                finish_many(conn, self._unsent, self.slot_id)
            self._unsent = []
            self._wakes.wake("scheduler")

    def stop(self) -> None:
        """End the thread."""
        self.stopping.set()
        self.join(30)
