"""A node's farm.toml, read again beside the agent's main thread: what it would have the node be, if it may.

Reading the machine asks NVML, which can hang where a GPU is dying, so a thread of its own does it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import structlog

from farm.errors import FieldFault, InvalidInput
from gpu_pinning import Claims, PinningError, SlotPlan, without_slots
from workers.node_config import NodeConfig, read_node_config
from workers.placement import Seating, device_of, refuse_impossible, seat

log = structlog.get_logger(__name__)


class Replanning:
    """All methods belong to the main thread. ``notify`` wakes it when there is something to :meth:`take`."""

    def __init__(self, running: NodeConfig, notify: Callable[[], None], claims: Claims | None = None) -> None:
        self._running = running
        self._notify = notify
        self._claims = claims
        self._thread: threading.Thread | None = None
        self._found: Seating | None = None

    @property
    def busy(self) -> bool:
        """Whether farm.toml is being read, or was read and not taken."""
        return self._found is not None or (self._thread is not None and self._thread.is_alive())

    def begin(self, present: Seating, seats: Mapping[str, SlotPlan], pids: set[int]) -> None:
        """Read farm.toml and the machine, of which the slots in ``seats`` with all their ``pids`` are ours.

        What comes of it is :meth:`take`'s; a file that cannot be applied is told in the log and changes
        nothing.
        """
        self._thread = threading.Thread(
            target=self._read, args=(present, dict(seats), pids), name="replan", daemon=True
        )
        self._thread.start()

    def take(self) -> Seating | None:
        """The new seating, once."""
        found, self._found = self._found, None
        return found

    def _read(self, present: Seating, seats: Mapping[str, SlotPlan], pids: set[int]) -> None:
        try:
            config = read_node_config(self._running.path)
            _refuse_fixed(self._running, config)
            wanted = seat(config, lambda machine: without_slots(machine, seats, pids))
            refuse_impossible(wanted, present.plan)
            for slot in wanted.plan.slots:
                # what the database is to be told of it, while nothing hangs on it yet
                device_of(wanted, slot)
            if self._claims is not None:
                # what is given up is kept until the slots have moved
                self._claims.add(wanted.plan.slots)
        except (InvalidInput, PinningError, OSError) as error:
            tell_not_applied(error)
            return
        except Exception as error:
            # whatever it is: the slots that run are worth more than the file
            log.exception("reading farm.toml failed")
            tell_not_applied(error)
            return
        self._found = wanted
        self._notify()


def tell_not_applied(error: Exception) -> None:
    """Say that a changed farm.toml changes nothing, and why."""
    reason = str(error) or type(error).__name__
    log.error("farm.toml is not applied; the plan that runs stays", error=reason)


def _refuse_fixed(running: NodeConfig, wanted: NodeConfig) -> None:
    """What an agent keeps while it runs. Raises :class:`InvalidInput`."""
    fixed = {"/name": (running.name, wanted.name)} | {
        f"/paths/{field}": (getattr(running.wishes.paths, field), getattr(wanted.wishes.paths, field))
        for field in ("work", "spool")
    }
    fixed["/mig"] = (_mig(running), _mig(wanted))
    faults = [
        FieldFault(pointer, f"{new!r}: the agent that runs has {old!r}; restart it to change this")
        for pointer, (old, new) in fixed.items()
        if old != new
    ]
    if faults:
        raise InvalidInput("; ".join(f"{fault.pointer}: {fault.message}" for fault in faults), faults)


def _mig(config: NodeConfig) -> list[dict[str, object]]:
    return [wish.model_dump(mode="json") for wish in config.wishes.mig]
