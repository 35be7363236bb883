"""From ticket to finished attempts: claim, run each task under its engine, finish in one transaction."""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import structlog

from farm.errors import FarmError, FencedOff, ParkRequested, TaskFailed
from farm.lifecycle import machines
from farm.lifecycle.claim import claim, wishes
from farm.lifecycle.finish import finish_many
from farm.lifecycle.leases import return_unbegun
from farm.records import AttemptReport, ClaimedTask, Cost, Ticket, TicketEntry
from farm.states import AttemptState
from jobs import registry
from jobs.engine import Engine
from workers import repository
from workers.asset_folder import AssetFolder
from workers.bench import Bench
from workers.blame import blame_disk, describe
from workers.control import ALONE
from workers.disks import FULL_PREFIX
from workers.expansion import expand_after
from workers.frame_desk import FrameDesk
from workers.gpu_look import BUSY_PREFIX
from workers.host import SlotHost
from workers.patience import is_passing, patiently
from workers.processes import end_orphans, trim_memory
from workers.usage import CpuTime, PeakMemory

log = structlog.get_logger(__name__)

_LOOK_EVERY_S = 0.2
"""How often a bundle looks at the database for a cancel or a pause: a look costs as much as a short task."""


@dataclass(slots=True)
class _Ended:
    report: AttemptReport
    numbers: list[int]


class Runner:
    """Runs the tickets of one slot, one at a time, on the slot's main thread."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._desk = FrameDesk(bench.db, bench.spool, self._on_fenced, lambda: bench.wake("events"))
        self._host: SlotHost | None = None
        self._host_attempt = ""
        self._engine: tuple[str, Engine] | None = None
        self._assets: tuple[str, AssetFolder] | None = None
        self._warm: list[str] = []
        self._warm_told: list[str] = []
        self._hold_for: str | None = None
        """Why the slot is to be held once the present ticket is finished."""
        self.busy = False
        self.memory = PeakMemory(os.getpid())

    def park(self) -> None:
        """Ask the running attempt to park; from a signal handler."""
        host = self._host
        if host is not None:
            host.alarm(ParkRequested)

    def run_ticket(self, data: dict[str, Any]) -> None:
        """Run what a ticket still entitles to; a lost claim, a doubled or a stale ticket does nothing."""
        self.busy = True
        try:
            self._run_ticket(data)
        finally:
            # whatever went wrong: what is not finished now is nobody's, and its lease may end
            self._bench.control.claimed(0, 0)
            self.busy = False

    def _run_ticket(self, data: dict[str, Any]) -> None:
        try:
            ticket = Ticket.from_json(data)
        except (ValueError, KeyError, TypeError) as error:
            log.error("a ticket could not be read", error=repr(error), ticket=str(data)[:500])
            return
        identity = self._bench.identity
        if ticket.slot_id != identity.slot_id:
            log.error("a ticket for another slot", slot=ticket.slot_id)
            return
        if self._bench.stopping():
            self._return(list(ticket.entries))
            return
        if (why := self._bench.why_gpu_busy()) is not None:
            self._hold(list(ticket.entries), BUSY_PREFIX + why)
            return
        if (why := self._bench.disks.short()) is not None:
            self._hold(list(ticket.entries), FULL_PREFIX + why)
            return
        if self._bench.control.waiting():
            self._hold(list(ticket.entries), ALONE)
            return
        claimed = self._claim(ticket)
        if not claimed:
            self._ready_again()
            return
        serials = [task.serial for task in claimed]
        self._bench.control.claimed(min(serials), max(serials))
        self._run_claimed(deque(claimed))
        self._bench.wake("scheduler")
        self._bench.wake("events")

    def close(self) -> None:
        """Close engine, desk and folders."""
        self._close_engine()
        self._desk.close()
        if self._assets is not None:
            self._assets[1].remove()

    # --- ticket --------------------------------------------------------------------------------------

    def _claim(self, ticket: Ticket) -> list[ClaimedTask]:
        bench = self._bench
        until = time.monotonic() + bench.settings.claim_timeout_s

        def once() -> list[ClaimedTask]:
            with bench.db.write() as conn:
                return claim(
                    conn, ticket, bench.identity.slot_id, bench.identity.incarnation, bench.settings.lease_s
                )

        try:
            # after that time the reconciler gives the task to somebody else
            return patiently(once, give_up=lambda: bench.stopping() or time.monotonic() > until, what="claim")
        except Exception as error:
            if not is_passing(error):
                raise
            return []

    def _ready_again(self) -> None:
        """Nothing of the ticket was ours: without this the slot would count as busy until it is found out."""
        identity = self._bench.identity

        def once() -> None:
            with self._bench.db.write() as conn:
                machines.slot_ready(conn, identity.slot_id, identity.incarnation, os.getpid())

        self._unless_stopped(once, "ready")

    def _run_claimed(self, waiting: deque[ClaimedTask]) -> None:
        ended: list[_Ended] = []
        # a claim saw every wish that was there then
        seen: dict[str, str | None] = {}
        looked = time.monotonic()
        while waiting:
            task = waiting[0]
            if time.monotonic() - looked >= _LOOK_EVERY_S:
                seen, looked = self._wishes(waiting), time.monotonic()
            wish = seen.get(task.task_id)
            if self._bench.stopping() or wish == "park":
                break
            waiting.popleft()
            if wish == "cancel":
                ended.append(self._spooled(_bare_report(task, AttemptState.CANCELLED), []))
            else:
                ended.append(self._attempt(task))
            if ended[-1].report.state in (AttemptState.PARKED, AttemptState.INTERRUPTED) and waiting:
                # what held this one back holds the others back too
                break
        if waiting:
            # a parked job's other tasks go back as well: they have not begun
            self._return([TicketEntry(task.task_id, task.epoch) for task in waiting])
        self._finish(ended)

    def _wishes(self, waiting: Iterable[ClaimedTask]) -> dict[str, str | None]:
        """What people want of the bundle's waiting tasks; nothing while the database is away."""
        try:
            with self._bench.db.read() as conn:
                return dict(wishes(conn, [task.task_id for task in waiting]))
        except Exception as error:
            if not is_passing(error):
                raise
            return {}

    def _return(self, entries: list[TicketEntry]) -> None:
        def once() -> None:
            with self._bench.db.write() as conn:
                return_unbegun(
                    conn, self._bench.identity.slot_id, [(entry.task_id, entry.epoch) for entry in entries]
                )

        self._unless_stopped(once, "return")

    def _hold(self, entries: list[TicketEntry], why: str) -> None:
        """GPU, disk or agent are not there for us: claim nothing, and be held until the agent lets us go."""
        identity = self._bench.identity

        def once() -> None:
            with self._bench.db.write() as conn:
                return_unbegun(conn, identity.slot_id, [(entry.task_id, entry.epoch) for entry in entries])
                machines.slot_ready(conn, identity.slot_id, identity.incarnation, os.getpid())
                machines.hold_slot(conn, identity.slot_id, why)

        log.warning("this slot claims nothing", reason=why)
        self._unless_stopped(once, "hold")
        self._bench.wake("scheduler")

    def _finish(self, ended: list[_Ended]) -> None:
        bench = self._bench
        reports = [item.report for item in ended]
        if not reports:
            return
        warm = self._warm
        hold_for = self._hold_for
        self._hold_for = None

        def once() -> None:
            with bench.db.write() as conn:
                if warm != self._warm_told:
                    machines.set_warm(conn, bench.identity.slot_id, warm)
                finish_many(conn, reports, bench.identity.slot_id, expand_after, bench.settings)
                if reason := ALONE if bench.control.waiting() else hold_for:
                    machines.hold_slot(conn, bench.identity.slot_id, reason)

        try:
            bench.spool.sync()
        except OSError as error:
            log.error("the spool could not be synced", error=str(error))
        if self._unless_stopped(once, "finish"):
            self._warm_told = warm
            bench.spool.answered(number for item in ended for number in item.numbers)

    def _unless_stopped(self, action: Callable[[], None], what: str) -> bool:
        """Do it, waiting for the database unless the slot is to end: the agent then replays the spool."""
        try:
            patiently(action, give_up=self._bench.stopping, what=what)
        except Exception as error:
            if not is_passing(error):
                raise
            return False
        return True

    # --- one attempt ---------------------------------------------------------------------------------

    def _attempt(self, task: ClaimedTask) -> _Ended:
        bench = self._bench
        cpu = CpuTime(os.getpid())
        self.memory.restart()
        report = _bare_report(task, AttemptState.FAILED)
        try:
            host = SlotHost(bench, task, self._desk, lambda: self._job_assets(task.job_id))
        except OSError as error:
            # not even its folders could be made
            describe(error, report)
            self._blame_disk(report)
            return self._spooled(report, [])
        self._host_attempt, self._host = task.attempt_id, host
        bench.control.begin(task.serial)
        try:
            if bench.stopping():
                raise ParkRequested()
            if task.frames != "":
                self._engine_for(task.engine, host).run(host.context(), host)
            # else an earlier attempt has published every frame, and died before it could say so
            self._check_complete(host)
            report.state = AttemptState.DONE
        except Exception as error:  # noqa: BLE001  everything an engine raises becomes a report
            if (lines := describe(error, report)) is not None:
                host.log.write(lines)
                if not isinstance(error, FarmError):
                    # the engine's own state is unknown now
                    self._close_engine()
        finally:
            self._host = None
        if strays := end_orphans():
            host.log.write(f"ended {len(strays)} processes that the task left behind")
        frames, numbers = self._desk.drain()
        if host.fenced() and report.state is not AttemptState.INTERRUPTED:
            report.state = AttemptState.INTERRUPTED
        report.frames = frames
        report.artifacts = host.artifacts
        report.result = host.found if report.state is AttemptState.DONE else None
        report.checkpoint = host.checkpoint
        report.split = host.split if report.state is AttemptState.DONE else None
        report.times = host.clock.split(task.queued_s)
        report.cost = Cost(
            slot_s=time.monotonic() - host.clock.started_at,
            cpu_s=cpu.spent(),
            peak_rss=self.memory.peak(),
            peak_vram=host.peak_vram,
        )
        if host.warm is not None:
            self._warm = host.warm
        host.close()
        self._blame_disk(report)
        report.ended_at = time.time()
        ended = self._spooled(report, numbers)
        # only now: a slot that dies before this has not told how the attempt ended
        bench.control.end()
        return ended

    def _check_complete(self, host: SlotHost) -> None:
        missing = host.missing_frames()
        if missing and host.split is None:
            shown = ", ".join(map(str, missing[:10]))
            raise TaskFailed(f"the engine returned without {len(missing)} of its frames: {shown}")

    def _blame_disk(self, report: AttemptReport) -> None:
        if (full := blame_disk(report, self._bench.disks)) is not None:
            self._hold_for = FULL_PREFIX + full

    def _spooled(self, report: AttemptReport, numbers: list[int]) -> _Ended:
        report.device = self._bench.identity.device
        try:
            return _Ended(report, [*numbers, self._bench.spool.add_report(report)])
        except OSError as error:
            log.error("a report could not be spooled", error=str(error))
            return _Ended(report, numbers)

    def _on_fenced(self, attempt_id: str) -> None:
        host = self._host
        if host is not None and self._host_attempt == attempt_id:
            host.alarm(FencedOff)

    # --- what stays open between tasks ---------------------------------------------------------------

    def _engine_for(self, name: str, host: SlotHost) -> Engine:
        if self._engine is not None and self._engine[0] == name:
            return self._engine[1]
        self._close_engine()
        with host.phase("load"):
            engine = registry.kind(name).create_engine()
            engine.open(host)
        self._engine = (name, engine)
        return engine

    def _close_engine(self) -> None:
        if self._engine is None:
            return
        name, engine = self._engine
        self._engine = None
        self._warm = []
        try:
            engine.close()
        except Exception as error:  # noqa: BLE001  close() never raises; one that does must not cost the slot
            log.error("an engine failed to close", engine=name, error=repr(error))
        trim_memory()

    def _job_assets(self, job_id: str) -> AssetFolder:
        if self._assets is not None and self._assets[0] == job_id:
            return self._assets[1]
        if self._assets is not None:
            self._assets[1].remove()
            self._assets = None

        def once() -> dict[str, str]:
            with self._bench.db.read() as conn:
                return repository.job_assets(conn, job_id)

        host = self._host
        give_up: Callable[[], bool] = lambda: bool(host and host.check())  # noqa: E731  check() raises
        wanted = patiently(once, give_up=give_up, what="assets")
        folder = self._bench.scratch / "assets" / job_id
        shutil.rmtree(folder, ignore_errors=True)
        self._assets = (job_id, AssetFolder(folder, wanted, self._bench.store))
        return self._assets[1]


def _bare_report(task: ClaimedTask, state: AttemptState) -> AttemptReport:
    return AttemptReport(
        task_id=task.task_id,
        epoch=task.epoch,
        attempt_id=task.attempt_id,
        state=state,
        ended_at=time.time(),
        charged=False,
    )
