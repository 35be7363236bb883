"""Which scheduler leads: a row in the database, on the database's clock.

A leader holds the row for a few seconds and renews it inside the very transactions in which it acts: the
renewal locks the row, so while such a transaction is open nobody else can become leader, and one that slept
until another took over finds that it holds nothing and does nothing. ``term`` grows with every change of
holder. A lease that is over lets others in; until one comes, its leader may go on, as nobody has acted since.
"""

from __future__ import annotations

import os
import secrets
import socket

import sqlalchemy as sa

from farm.db.connect import db_now
from farm.db.rows import insert_missing, lock
from farm.db.tables import leaders
from farm.errors import Conflict

SCHEDULER = "scheduler"


class NotLeading(Conflict):
    """Another scheduler leads, or has led since this one did."""

    slug = "not-leading"


class Leadership:
    """One candidate for a role. ``term`` is set while it believes that it leads."""

    def __init__(self, lease_s: float, role: str = SCHEDULER, holder: str | None = None) -> None:
        self.lease_s = lease_s
        self.role = role
        self.holder = holder or f"{socket.gethostname()[:100]}:{os.getpid()}:{secrets.token_hex(4)}"
        self.term: int | None = None

    def acquire(self, conn: sa.Connection) -> bool:
        """Become leader where nobody is, or where the lease of the one who was is over."""
        conn.execute(insert_missing(conn, leaders).values(role=self.role, holder="", term=0, expires_at=0.0))
        row = conn.execute(
            lock(
                conn,
                sa.select(leaders.c.term, leaders.c.expires_at, db_now().label("now")).where(
                    leaders.c.role == self.role
                ),
            )
        ).one()
        if row.expires_at > row.now:
            return False
        self.term = row.term + 1
        conn.execute(
            leaders.update()
            .where(leaders.c.role == self.role)
            .values(holder=self.holder, term=self.term, expires_at=db_now() + self.lease_s)
        )
        return True

    def hold(self, conn: sa.Connection) -> None:
        """Renew the lease and keep everybody else from leading until this transaction ends.

        The first statement of every transaction in which a leader acts. Raises :class:`NotLeading` where
        another has led since; the transaction must then be rolled back.
        """
        if self.term is not None:
            held = conn.execute(
                leaders.update()
                .where(
                    leaders.c.role == self.role,
                    leaders.c.holder == self.holder,
                    leaders.c.term == self.term,
                )
                .values(expires_at=db_now() + self.lease_s)
            )
            if held.rowcount == 1:
                return
        self.term = None
        raise NotLeading

    def release(self, conn: sa.Connection) -> None:
        """Give the role up at once, so that another need not wait for the lease to end."""
        if self.term is not None:
            conn.execute(
                leaders.update()
                .where(
                    leaders.c.role == self.role,
                    leaders.c.holder == self.holder,
                    leaders.c.term == self.term,
                )
                .values(expires_at=0.0)
            )
            self.term = None
