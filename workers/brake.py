"""Slows the host work of a slot that drives a GPU: encoding, hashing, uploads, decompression.

Such a slot cannot stand still half of the time: its GPU would too. Its main thread, which launches the GPU's
work, keeps what it has; all others, and its children, share a quarter of the slot's CPUs while the brake is
on. Threads that are born meanwhile take their mask from the thread that made them, so the brake is pressed
again and again. Each mask is read back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import structlog

from gpu_pinning import procfs

log = structlog.get_logger(__name__)
SHARE = 4
"""One CPU in so many is left to host work, and one at least."""


class Brake:
    """The brake of one slot. Main thread of the agent alone."""

    def __init__(self) -> None:
        self._on = False

    @property
    def on(self) -> bool:
        """Whether it is pressed."""
        return self._on

    def press(self, slot: int, below: Iterable[int], cpus: Iterable[int]) -> int:
        """Leave few CPUs to all threads but the slot's main one; how many threads are held to them now.

        ``slot`` is its process, ``below`` the processes that descend from it.
        """
        all_cpus = sorted(cpus)
        few = set(all_cpus[-max(1, len(all_cpus) // SHARE) :])
        self._on = True
        return self._hold(slot, below, few)

    def release(self, slot: int, below: Iterable[int], cpus: Iterable[int]) -> int:
        """Give all CPUs back; how many threads have them now."""
        self._on = False
        return self._hold(slot, below, set(cpus))

    @staticmethod
    def _hold(slot: int, below: Iterable[int], cpus: set[int]) -> int:
        held = 0
        for pid in (slot, *below):
            for tid in procfs.threads(pid):
                if tid == slot:
                    continue
                try:
                    if os.sched_getaffinity(tid) != cpus:
                        os.sched_setaffinity(tid, cpus)
                    held += os.sched_getaffinity(tid) == cpus
                except ProcessLookupError:
                    continue
                except OSError as error:
                    # a cpuset that has become narrower, or no right to another user's thread
                    log.warning("a thread could not be slowed", tid=tid, error=error.strerror)
        return held
