"""What follows from what the auditor saw: events, what people are shown, drains, holds and buffer rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
import structlog

from farm import events, ledger
from farm.lifecycle import machines
from gpu_pinning import Finding, Sharing
from workers.auditing import News
from workers.gpu_look import BUSY_PREFIX
from workers.link import DatabaseLink
from workers.managed_slot import ManagedSlot

log = structlog.get_logger(__name__)


class FindingsDesk:
    """Acts on news, on the agent's main thread. ``retire`` drains a slot and starts it again."""

    def __init__(self, link: DatabaseLink, retire: Callable[[ManagedSlot, str], None]) -> None:
        self._link = link
        self._retire = retire
        self._stuck: set[str] = set()

    def act(self, news: News, slots: Mapping[str, ManagedSlot]) -> None:
        """One piece of news."""
        slot = slots.get(news.slot_id)
        if slot is None:
            return
        if news.findings is not None:
            self._found(slot, news.findings)
        elif news.busy is not None:
            self._busy(slot, news.busy)
        elif news.stuck is not None:
            self._is_stuck(slot, *news.stuck)
        elif news.freed:
            self._freed(slot)

    def show(self, slot: ManagedSlot) -> None:
        """Let the database have what is to be shown of a slot now."""
        pools, device = list(slot.seat.pools), dict(slot.device)
        self._link.tell(
            f"{slot.slot_id} described",
            lambda conn: machines.describe_slot(conn, slot.slot_id, pools, device),
        )

    def _found(self, slot: ManagedSlot, findings: tuple[Finding, ...]) -> None:
        rows: list[dict[str, Any]] = [
            row.model_dump(mode="json", exclude={"slot"}, exclude_defaults=True) for row in findings
        ]
        slot.device.pop("audit", None)
        if rows:
            slot.device["audit"] = rows
            log.warning("a slot is not as planned", slot=slot.name, findings=rows)

        def once(conn: sa.Connection) -> None:
            node_id = self._link.node_id
            events.emit(conn, "slot.audit", slot_id=slot.slot_id, node_id=node_id, data={"findings": rows})

        self._link.tell(f"audit of {slot.slot_id}", once)
        self.show(slot)
        grave = [row for row in findings if row.drains]
        if grave:
            worst = grave[0]
            slot.fence_anew()
            detail = f" ({worst.detail})" if worst.detail else ""
            self._retire(slot, f"audit: {worst.kind}: {worst.subject}: {worst.found}{detail}")

    def class_fell(self, slot: ManagedSlot, floor: str, pair: Sharing) -> None:
        """A slot's class beside a neighbour is below its wish."""
        finding = Finding(
            kind="class",
            slot=slot.name,
            subject=pair.neighbour,
            wanted=f"class {floor} or better",
            found=f"class {pair.guarantee}: {pair.reason}",
            drains=True,
            detail=pair.raise_by,
        )
        row = finding.model_dump(mode="json", exclude={"slot"}, exclude_defaults=True)

        def once(conn: sa.Connection) -> None:
            node_id = self._link.node_id
            events.emit(conn, "slot.audit", slot_id=slot.slot_id, node_id=node_id, data={"findings": [row]})

        self._link.tell(f"class of {slot.slot_id}", once)

    def _busy(self, slot: ManagedSlot, why: str) -> None:
        if why:
            log.warning("a slot's GPU is in use by somebody else", slot=slot.name, reason=why)
            self._link.hold(slot.slot_id, BUSY_PREFIX + why)
        else:
            self._link.let_go(slot.slot_id, BUSY_PREFIX)

    def _is_stuck(self, slot: ManagedSlot, note: str, nbytes: int) -> None:
        log.error("a slot's GPU cannot be leased", slot=slot.name, reason=note)
        self._stuck.add(slot.slot_id)

        def once(conn: sa.Connection) -> None:
            ledger.clear_orphans(conn, slot.slot_id, "vram")
            if nbytes:
                ledger.note_orphan(conn, self._link.node_id, slot.slot_id, "vram", nbytes, note)
            machines.set_slot_state(conn, slot.slot_id, "dead", f"its GPU cannot be leased: {note}")

        self._link.tell(f"video memory of {slot.slot_id}", once)

    def _freed(self, slot: ManagedSlot) -> None:
        if slot.slot_id in self._stuck:
            log.info("a slot's video memory is free again", slot=slot.name)
            self._stuck.discard(slot.slot_id)
        self._link.tell(
            f"video memory of {slot.slot_id} free",
            lambda conn: ledger.clear_orphans(conn, slot.slot_id, "vram"),
        )
