"""One slot as its agent manages it: process, control file, clocks, and what the agent has decided on it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.ids import new_id
from farm.settings import Settings
from gpu_pinning import Fence, SlotPlan
from workers.back_off import BackOff
from workers.bench import SlotIdentity
from workers.control import AgentControl, Command, Reading
from workers.limits import Limits
from workers.node_folders import NodeFolders
from workers.processes import ExitNote, SlotProcess

_OUTPUT_MAX = 5 * 2**20
_SOURCE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Death:
    """One process life of a slot that is over, as the database is to hear of it."""

    slot_id: str
    incarnation: str
    spool: Path
    serial: int
    """Attempt that the slot was on; 0: none."""
    note: str
    command: Command
    """What the agent had asked of that attempt; ``RUN``: it died by itself."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pulse:
    """When a slot last beat (0 when we stopped it ourselves), and which attempts it has claimed."""

    age_s: float
    first: int
    last: int

    def holds(self, serial: int, stale_s: float) -> bool:
        """Whether the lease of that attempt may be extended."""
        return self.age_s < stale_s and 0 < self.first <= serial <= self.last


class ManagedSlot:
    """A slot's process lives and what is known of the present one."""

    def __init__(
        self,
        slot_id: str,
        seat: SlotPlan,
        fence: Fence,
        device: dict[str, Any],
        node: tuple[str, str],
        folders: NodeFolders,
    ) -> None:
        self.slot_id = slot_id
        self.name = seat.name
        self.seat = seat
        self.fence = fence
        self.device = device
        self._fence_stands = False
        self.incarnation = ""
        self.process: SlotProcess | None = None
        self.control: AgentControl | None = None
        self.limits = Limits()
        self.reading: Reading | None = None
        self.beat_moved_at = 0.0
        self.kill_at: float | None = None
        self.killed = False
        self.asked: Command = Command.RUN
        self.asked_serial = 0
        self.asked_reason = ""
        self.restart_at: float | None = 0.0
        self.leaving = ""
        """Why this process life is being ended by us; empty: it is not."""
        self.end_by: float | None = None
        self.launch_seen = False
        """Whether the launcher has said how the present process is held."""
        self._back_off = BackOff()
        self._oom_kills: int | None = None
        self._node = node
        self._folders = folders
        self._stopped_groups: tuple[int, ...] = ()
        self._frozen: tuple[int, float] = (0, 0.0)
        """The attempt that was frozen last, and for how long in all."""

    # --- life ----------------------------------------------------------------------------------------

    def move(self, seat: SlotPlan, fence: Fence) -> None:
        """Give a slot that does not run another seat. Raises :class:`gpu_pinning.FenceError`."""
        assert self.process is None
        self.fence.remove()
        self.seat, self.fence, self._fence_stands = seat, fence, False

    def start(self, settings: Settings) -> None:
        """Start a new process life; on the main thread.

        Raises :class:`gpu_pinning.PinningError` where its fence cannot be put up.
        """
        if not self._fence_stands:
            self.fence.clear()
            self.fence.apply()
            self._fence_stands = True
        self._oom_kills = self.fence.group.oom_kills()
        self.incarnation = new_id("slot")
        control_path = self._folders.control / f"{self.name}.control"
        self.control = AgentControl.create(control_path)
        scratch = self._folders.scratch / self.name
        _empty(scratch)
        node_id, node_name = self._node
        identity = SlotIdentity(
            slot_id=self.slot_id,
            slot_name=self.name,
            node_id=node_id,
            node_name=node_name,
            incarnation=self.incarnation,
            control=str(control_path),
            spool=str(self.spool_path()),
            scratch=str(scratch),
            device=self.device,
        )
        output = self._folders.output / f"{self.name}.log"
        if output.exists() and output.stat().st_size > _OUTPUT_MAX:
            output.rename(output.with_suffix(".log.1"))
        self.process = SlotProcess(
            [sys.executable, "-m", "workers.slot"],
            _environment(settings) | self.fence.environment() | identity.to_environment(),
            output,
            fence=self.fence,
        )
        self.process.before_thaw = self._note_frozen
        self._frozen = (0, 0.0)
        now = time.monotonic()
        self.limits = Limits()
        self.reading = None
        self.beat_moved_at = now
        self.kill_at = None
        self.killed = False
        self.restart_at = None
        self.leaving, self.end_by, self.launch_seen = "", None, False
        self._say_nothing()

    def spool_path(self) -> Path:
        """The spool file of this process life."""
        return self._folders.spool / f"{self.slot_id}.{self.incarnation}.spool"

    def ended(self) -> Death:
        """Collect a process that is over; says what the database is to hear."""
        assert self.process is not None and self.control is not None
        lived_s = time.monotonic() - self.process.started_at
        retired = bool(self.leaving)
        note = self.process.collect()
        last = self.control.read()
        serial = last.serial
        self.control.close()
        self.process = self.control = None
        self._back_off.died(time.monotonic(), lived_s, worked=last.ready or self.killed or retired)
        asked_this = serial != 0 and serial == self.asked_serial
        return Death(
            slot_id=self.slot_id,
            incarnation=self.incarnation,
            spool=self.spool_path(),
            serial=serial,
            note=_told(note) + self._out_of_memory(note),
            command=self.asked if asked_this else Command.RUN,
            reason=self.asked_reason if asked_this else "",
        )

    def failed_start(self) -> float:
        """It could not even be started: count that, and say how long to wait before the next try."""
        self._back_off.failed_start(time.monotonic())
        return self.back_off_s()

    def back_off_s(self) -> float:
        """How long to wait before the next start."""
        return self._back_off.wait_s()

    def fence_anew(self) -> None:
        """Put the fence up again before the next start: something has changed it."""
        self._fence_stands = False

    def _out_of_memory(self, note: ExitNote) -> str:
        """What is to be said where its own memory limit has killed it."""
        kills, limit = self.fence.group.oom_kills(), self.seat.limits.memory_bytes
        if note.signal != signal.SIGKILL or self.killed or limit is None or not kills:
            return ""
        if kills <= (self._oom_kills or 0):
            return ""
        return (
            f": it reached its memory limit of {limit / 2**20:,.0f} MiB; raise slots.{self.seat.wish}.memory "
            "in farm.toml, or give its tasks less to hold"
        )

    def _note_frozen(self, seconds: float) -> None:
        """Time that the attempt stood frozen is the farm's, not its own; and it may write again."""
        self.keep_still(False)
        if self.control is not None and (serial := self.present_serial()):
            earlier = self._frozen[1] if self._frozen[0] == serial else 0.0
            self._frozen = (serial, earlier + seconds)
            self.control.frozen(*self._frozen)

    # --- looking and telling -------------------------------------------------------------------------

    def look(self, now: float) -> Reading | None:
        """Read the control file; ``None`` where no process runs."""
        if self.control is None or self.process is None:
            return None
        reading = self.control.read()
        if self.reading is None or reading.beat != self.reading.beat:
            self.beat_moved_at = now
        self.reading = reading
        standing = self.process.frozen or (
            self.asked is Command.PAUSE and self.asked_serial == reading.serial
        )
        self.limits.look(reading, now, standing)
        if reading.serial != self.asked_serial:
            self._say_nothing()
        return reading

    def present_serial(self) -> int:
        """The attempt that the slot is on right now; any thread may ask."""
        control = self.control
        try:
            return control.read().serial if control is not None else 0
        except ValueError:
            # closed by the main thread in this moment
            return 0

    def pulse(self, now: float) -> Pulse | None:
        """Its last beat and its claims; any thread may ask. ``None`` without a process."""
        process, reading = self.process, self.reading
        if process is None or reading is None:
            return None
        return Pulse(0.0 if process.frozen else now - self.beat_moved_at, *reading.claimed)

    def tell(self, command: Command, reason: str, grace_s: float | None, now: float, duty: int = 100) -> None:
        """Ask something of the attempt that the slot is on; kill it when it has not ended after the grace."""
        if self.control is None or self.reading is None or self.reading.serial == 0:
            return
        serial = self.reading.serial
        if (command, serial) == (self.asked, self.asked_serial):
            if command is Command.PAUSE:
                self._stop_new_groups()
            return
        if serial != self.asked_serial and command is Command.RUN:
            return
        self.control.command(serial, command, duty)
        self._signal_groups(command)
        self.asked, self.asked_serial, self.asked_reason = command, serial, reason
        self.kill_at = None if grace_s is None else now + grace_s

    def may_claim(self, allowed: bool) -> None:
        """Let the slot claim tasks, or not for now; what it runs is left alone."""
        if self.control is not None:
            self.control.order_wait(not allowed)

    def keep_still(self, still: bool) -> None:
        """Let the slot begin no transaction for now, or again; see :mod:`workers.stillstand`."""
        if self.control is not None:
            self.control.order_still(still)

    def writes(self) -> bool:
        """Whether it is within a transaction that writes, or about to be."""
        return self.control is not None and self.control.writing() > 0

    def kill(self) -> None:
        """End the process and all below it."""
        if self.process is not None:
            self.killed = True
            self.kill_at = None
            self.process.kill()

    def retire(self, reason: str, end_by: float) -> None:
        """Let the process park its task and end; kill it when it has not ended at ``end_by``."""
        if self.process is not None and not self.leaving:
            self.leaving, self.end_by = reason, end_by
            self.end()

    def end(self) -> None:
        """Ask the process to park its task, begin nothing and end."""
        if self.process is not None and self.control is not None:
            # one that is frozen could not hear of it
            self.process.thaw()
            self.control.order_stop()
            self._signal_groups(Command.PARK)
            self.process.ask_to_end()

    def _say_nothing(self) -> None:
        self.asked, self.asked_serial, self.asked_reason = Command.RUN, 0, ""
        self.kill_at = None
        self._stopped_groups = ()

    def _stop_new_groups(self) -> None:
        """Child groups that were declared while the attempt is paused stand still too."""
        assert self.reading is not None
        new = tuple(group for group in self.reading.groups if group not in self._stopped_groups)
        if new:
            _signal(new, signal.SIGSTOP)
            self._stopped_groups += new

    def _signal_groups(self, command: Command) -> None:
        """Foreign programs do not read the control word: stop them as groups, or let them go on."""
        assert self.reading is not None or command is Command.PARK
        if command is Command.PAUSE and self.reading is not None:
            self._stopped_groups = self.reading.groups
            _signal(self._stopped_groups, signal.SIGSTOP)
        elif self._stopped_groups:
            _signal(self._stopped_groups, signal.SIGCONT)
            self._stopped_groups = ()


def _told(note: ExitNote) -> str:
    left = f"; {note.left} of its processes could not be killed" if note.left else ""
    return f"{note}{left}"


def _environment(settings: Settings) -> dict[str, str]:
    """The agent's own environment, with every setting as the agent has it."""
    found = dict(os.environ)
    values: Mapping[str, object] = settings.model_dump()
    found |= {f"FARM_{name.upper()}": str(value) for name, value in values.items() if value is not None}
    paths = [str(_SOURCE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return found


def _empty(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)


def _signal(groups: Iterable[int], number: int) -> None:
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
