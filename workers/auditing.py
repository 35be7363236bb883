"""Looks, in a thread of its own, whether the slots still are where the plan put them and how their GPUs do.

NVML calls can hang where a GPU is dying, so the agent's main thread never makes one: it gives this thread the
slots to look at and takes what was seen. :mod:`workers.findings` does what follows from it.

Every second, idle GPU slots: is their GPU somebody else's now? Every ``every_s``, all slots: threads, groups,
environment, device files; their GPUs' health, strangers and kernel messages. After a slot's death, without
delay: is its video memory free?
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from gpu_pinning import (
    Fence,
    Finding,
    GpuHealth,
    Nvml,
    Plan,
    SlotPlan,
    audit_gpus,
    audit_slot,
    kernel_log,
    nvml_session,
    procfs,
    why_busy_now,
    xid_findings,
)
from gpu_pinning.audit import vram_holders
from workers.placement import Seating

log = structlog.get_logger(__name__)
_LOOK_S = 1.0
_FREE_LOOK_S = 0.02
_STUCK_S = 5.0
"""Video memory that a dead slot's GPU still holds after so long is somebody's: it is told."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A slot as it is to be looked at; ``pid`` of its process, None where none runs behind the fence."""

    slot_id: str
    fence: Fence
    pid: int | None
    idle: bool

    @property
    def seat(self) -> SlotPlan:
        """Where it is to sit."""
        return self.fence.slot


@dataclass(frozen=True, slots=True)
class News:
    """Something new on one slot. Exactly one of the fields after ``slot_id`` is given."""

    slot_id: str
    findings: tuple[Finding, ...] | None = None
    """All that is wrong with it now; empty: nothing any more."""
    busy: str | None = None
    """Why its GPU is not free for it; an empty text: it is free again."""
    stuck: tuple[str, int] | None = None
    """Who holds its video memory although the slot is dead, and how many bytes."""
    freed: bool = False
    """Its video memory was seen free."""


@dataclass(slots=True)
class _Awaited:
    seat: SlotPlan
    dead: frozenset[int]
    since: float
    told: str = ""


@dataclass(slots=True)
class _Known:
    """What was told of a slot last."""

    findings: tuple[Finding, ...] = ()
    busy: str = ""
    xids: list[Finding] = field(default_factory=list)


class Auditor:
    """See the module. ``subjects`` is called from this thread; ``notify`` whenever there is news."""

    def __init__(
        self,
        seating: Callable[[], Seating],
        subjects: Callable[[], list[Subject]],
        notify: Callable[[], None],
        every_s: float,
        nvml_module: Any = None,
        also: Callable[[], None] = lambda: None,
    ) -> None:
        """``also`` is called after each audit, from this thread."""
        self._seating = seating
        self._subjects = subjects
        self._notify = notify
        self._every_s = every_s
        self._module = nvml_module
        self._also = also
        self._lock = threading.Lock()
        self._news: list[News] = []
        self._awaited: dict[str, _Awaited] = {}
        self._known: dict[str, _Known] = {}
        self._health: dict[str, GpuHealth] = {}
        self._pids: dict[str, frozenset[int]] = {}
        self._kick = threading.Event()
        self._end = threading.Event()
        self._kernel_seen = kernel_log()[1]
        self.cost_s = 0.0
        """What the last audit took."""
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; one that hangs in a driver call is left behind."""
        self._end.set()
        self._kick.set()
        # an agent may be stopped before it knew its slots
        if self._thread.is_alive():
            self._thread.join(2.0)

    def expect_free(self, slot_id: str, seat: SlotPlan) -> None:
        """A slot has ended (or was never seen running): it may start once its video memory is seen free."""
        if not seat.gpus:
            return
        with self._lock:
            dead = self._pids.pop(slot_id, frozenset())
            self._awaited[slot_id] = _Awaited(seat, dead, time.monotonic())
        self._kick.set()

    def why_wait(self, slot_id: str) -> str | None:
        """Why a slot may not be started yet; None: it may."""
        with self._lock:
            awaited = self._awaited.get(slot_id)
        return None if awaited is None else awaited.told or "its video memory is looked at"

    def take_news(self) -> list[News]:
        """What is new since the last call."""
        with self._lock:
            taken, self._news = self._news, []
        return taken

    # --- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                with contextlib.ExitStack() as stack:
                    lib: Nvml | str = "no GPU is planned"
                    if self._seating().machine.gpus:
                        lib = stack.enter_context(nvml_session(self._module))
                    self._look_on(lib if isinstance(lib, Nvml) else None)
            except Exception as error:
                log.exception("an audit failed", error=str(error)[:300])
                self._end.wait(_LOOK_S)

    def _look_on(self, nvml: Nvml | None) -> None:
        """Until the end, or until NVML has to be opened anew because a GPU was lost."""
        # a first audit soon, when the slots have started
        audited = time.monotonic() - max(0.0, self._every_s - _LOOK_S)
        looked = 0.0
        while not self._end.is_set():
            self._await_free(nvml)
            now = time.monotonic()
            if nvml is not None and now - looked >= _LOOK_S:
                looked = now
                self._look_busy(nvml)
            if now - audited >= self._every_s:
                audited = now
                self._audit(nvml)
                self._also()
                self.cost_s = time.monotonic() - now
                if any(not health.present for health in self._health.values()):
                    return
            with self._lock:
                hurry = any(not each.told for each in self._awaited.values())
            self._kick.wait(_FREE_LOOK_S if hurry else _LOOK_S)
            self._kick.clear()

    def _tell(self, news: News) -> None:
        with self._lock:
            self._news.append(news)
        self._notify()

    def _await_free(self, nvml: Nvml | None) -> None:
        with self._lock:
            awaited = list(self._awaited.items())
        seating = self._seating()
        for slot_id, each in awaited:
            holders = self._holders(nvml, seating, each)
            if not holders:
                with self._lock:
                    self._awaited.pop(slot_id, None)
                self._known.pop(slot_id, None)
                self._tell(News(slot_id, freed=True))
            elif time.monotonic() - each.since > _STUCK_S and (text := "; ".join(holders)) != each.told:
                each.told = text
                used = sum((nvml.memory_used(u) or 0) for u in each.seat.devices) if nvml is not None else 0
                self._tell(News(slot_id, stuck=(text, used)))

    @staticmethod
    def _holders(nvml: Nvml | None, seating: Seating, each: _Awaited) -> list[str]:
        if nvml is None:
            return ["NVML does not answer"]
        for uuid in each.seat.gpus:
            health = nvml.health(uuid)
            if not health.present:
                return [f"GPU {uuid} is gone: {health.cause}"]
        before = seating.in_use_before(each.seat)
        return vram_holders(nvml, each.seat, seating.memory_bytes(each.seat), each.dead, before)

    def _look_busy(self, nvml: Nvml) -> None:
        seating = self._seating()
        for subject in self._subjects():
            seat = subject.seat
            if not seat.gpus or subject.pid is None:
                continue
            mine = subject.fence.pids(subject.pid)
            self._pids[subject.slot_id] = frozenset(mine)
            if seat.kind != "gpu" or not subject.idle or seating.in_use_before(seat) is not None:
                continue
            found = [why_busy_now(nvml, seating.machine.gpu(uuid), mine) for uuid in seat.gpus]
            text = "; ".join(why for why in found if why)
            known = self._known.setdefault(subject.slot_id, _Known())
            if text != known.busy:
                known.busy = text
                self._tell(News(subject.slot_id, busy=text))

    def _audit(self, nvml: Nvml | None) -> None:
        subjects = self._subjects()
        everyone = procfs.all_processes()
        found: dict[str, list[Finding]] = {subject.slot_id: [] for subject in subjects}
        for subject in subjects:
            if subject.pid is not None:
                rows = audit_slot(subject.fence, subject.pid, everyone)
                found[subject.slot_id] += [row for row in rows if row.kind != "gone"]
        if nvml is not None:
            self._audit_gpus(nvml, subjects, found)
        for slot_id, seen in found.items():
            known = self._known.setdefault(slot_id, _Known())
            if tuple(seen) != known.findings:
                known.findings = tuple(seen)
                self._tell(News(slot_id, findings=known.findings))

    def _audit_gpus(self, nvml: Nvml, subjects: Sequence[Subject], found: dict[str, list[Finding]]) -> None:
        seating = self._seating()
        by_name = {subject.seat.name: subject for subject in subjects}
        plan: Plan = seating.plan.model_copy(update={"slots": tuple(s.seat for s in subjects)})
        members = {s.seat.name: s.fence.pids(s.pid) for s in subjects if s.pid is not None}
        for row in audit_gpus(plan, nvml, members, self._health):
            subject = by_name[row.slot or ""]
            shared = seating.in_use_before(subject.seat) is not None
            if row.kind in ("stranger-on-gpu", "wrong-gpu") and (shared or subject.pid is None):
                continue
            found[subject.slot_id].append(row)
        self._health = {uuid: nvml.health(uuid) for slot in plan.slots for uuid in slot.gpus}
        lines, self._kernel_seen = kernel_log(self._kernel_seen)
        for row in xid_findings(lines, plan, seating.machine):
            self._known.setdefault(by_name[row.slot or ""].slot_id, _Known()).xids.append(row)
        for slot_id, rows in found.items():
            rows += self._known[slot_id].xids if slot_id in self._known else []
