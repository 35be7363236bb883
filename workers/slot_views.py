"""What other threads of the agent may ask of its slots: each view works on a copy of the list."""

from __future__ import annotations

import time
from collections.abc import Mapping

from workers.auditing import Subject
from workers.managed_slot import ManagedSlot, Pulse


class SlotViews:
    """Views of ``slots`` by id. Once :attr:`leaving` is set, no slot counts as living."""

    def __init__(self, slots: Mapping[str, ManagedSlot]) -> None:
        self._slots = slots
        self.leaving = False

    def subjects(self) -> list[Subject]:
        """What the auditor looks at: each slot's fence, the process behind it, and whether that is idle."""
        found = []
        for slot in list(self._slots.values()):
            process, reading = slot.process, slot.reading
            pid = process.slot_pid if process is not None and slot.launch_seen and not slot.killed else None
            idle = reading is not None and reading.ready and not reading.serial
            found.append(Subject(slot.slot_id, slot.fence, pid, idle and not slot.leaving))
        return found

    def serials(self) -> dict[str, int]:
        """The attempt that each slot is on, where it is on one."""
        found = {}
        for slot in list(self._slots.values()):
            serial = slot.present_serial()
            if serial:
                found[slot.slot_id] = serial
        return found

    def pulses(self) -> dict[str, Pulse]:
        """Last beat and claims of each slot that has a process."""
        now = time.monotonic()
        found = {slot.slot_id: slot.pulse(now) for slot in list(self._slots.values())}
        return {slot_id: pulse for slot_id, pulse in found.items() if pulse is not None}

    def living(self) -> dict[str, tuple[str, int]]:
        """``(incarnation, pid)`` of slots that have told the database that they are ready, and still run."""
        if self.leaving:
            return {}
        found = {}
        for slot in list(self._slots.values()):
            reading = slot.reading
            if slot.process is not None and not slot.killed and reading is not None and reading.ready:
                found[slot.slot_id] = (slot.incarnation, reading.pid)
        return found

    def progress(self) -> dict[int, float]:
        """How far each running attempt is, by serial."""
        readings = [slot.reading for slot in list(self._slots.values())]
        return {reading.serial: reading.fraction for reading in readings if reading and reading.serial}
