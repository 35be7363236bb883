"""A machine is about to be taken away: a notice parks its work, drains the node, and hands it on at once.

The notice is SIGUSR2 to the agent, or a file that appears where ``FARM_PREEMPTION_FILE`` says. Parked work
is ready again the moment it has parked, for any other node. The node drains until the next agent starts on
a machine that has no notice any more: it was drained by us, not by people, so nobody has to resume it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
import structlog

from farm.db.tables import nodes
from farm.lifecycle import machines

if TYPE_CHECKING:
    from workers.link import DatabaseLink

log = structlog.get_logger(__name__)
REASON = "this machine is about to be taken away"


class Preemption:
    """The notice of one node. ``mark`` remembers over the agent's end that the drain was ours."""

    def __init__(self, notice_file: Path | None, mark: Path, link: DatabaseLink) -> None:
        self._file = notice_file
        self._mark = mark
        self._link = link
        self._signalled = False
        self.noticed = False

    def signal(self) -> None:
        """SIGUSR2 came; safe in a signal handler."""
        self._signalled = True

    def turn(self, node_id: str) -> bool:
        """Look for the notice; true once it has come. The first time, drain the node."""
        if not self.noticed and (self._signalled or (self._file is not None and self._file.exists())):
            self.noticed = True
            log.warning("notice of preemption: work is parked, the node drains")
            self._link.tell("preemption", lambda conn: self._drain(conn, node_id), "scheduler")
        return self.noticed

    def forget(self, node_id: str) -> None:
        """An agent has started: resume a node that an earlier notice drained."""
        if self._mark.exists() and not (self._file is not None and self._file.exists()):
            self._link.tell("back after preemption", lambda conn: self._resume(conn, node_id), "scheduler")

    def _drain(self, conn: sa.Connection, node_id: str) -> None:
        state = conn.scalar(sa.select(nodes.c.state).where(nodes.c.id == node_id))
        if state == "up":
            self._mark.write_text("drained by a notice of preemption\n")
            machines.drain_node(conn, node_id)

    def _resume(self, conn: sa.Connection, node_id: str) -> None:
        state = conn.scalar(sa.select(nodes.c.state).where(nodes.c.id == node_id))
        if state in ("draining", "drained"):
            machines.resume_node(conn, node_id)
        self._mark.unlink(missing_ok=True)
