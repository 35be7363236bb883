"""Who sits where in a run: decode and farm workers out of the plan; where there is none, half and half."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

from gpu_pinning import cpulist
from gpu_pinning.machine import Topology
from gpu_pinning.placement import make_plan
from gpu_pinning.stillness.crew import Work
from gpu_pinning.stillness.farm_load import kind_of
from gpu_pinning.wishes import NeighbourWish, SlotWish, Wishes

_FARM_POOLS = ("encode", "render")
PER_CPU = 4
"""Processes per CPU with isolation off, over all pools."""


@dataclass(frozen=True, slots=True)
class Seats:
    """CPUs of the decode load, the farm's workers, and what that placement is worth."""

    decode: tuple[int, ...]
    works: tuple[Work, ...]
    everyone: tuple[int, ...]
    guarantee: str
    reason: str
    notes: tuple[str, ...]
    decode_gpu: str | None = None
    """UUID of the GPU that decode sits on; None: it has none of its own."""

    @property
    def farm(self) -> tuple[int, ...]:
        """CPUs of the farm."""
        return tuple(sorted({cpu for work in self.works for cpu in work.cpus}))


def seat(machine: Topology | None, wishes: Wishes | None, *, decode_gpu: bool) -> Seats:
    """Seats for a run on this machine.

    Without neighbours in ``wishes`` a decode neighbour is assumed on the first GPU (``decode_gpu``) and on
    half of the cores, and the farm takes the rest as it does by default. GPU slots denoise and train; of the
    others each second one encodes and each second one renders.
    """
    everyone = tuple(sorted(os.sched_getaffinity(0)))
    if machine is None:
        return _halves(everyone, "the machine's topology could not be read")
    if wishes is None or not wishes.neighbours:
        wishes = _assumed(machine, wishes, decode_gpu)
    plan = make_plan(machine, wishes)
    decode = next((n for n in plan.neighbours if n.role == "decode"), None)
    here = set(everyone)
    slots = [slot for slot in plan.slots if slot.cpus and set(slot.cpus) <= here]
    if decode is None or not slots or not set(decode.cpus) & here:
        why = "; ".join(f"{refusal.wish}: {refusal.reason}" for refusal in plan.refusals)
        return _halves(everyone, f"the plan has no slot beside a decode neighbour{why and f' ({why})'}")
    works, counted = [], 0
    for slot in slots:
        if slot.gpus:
            if importlib.util.find_spec("torch") is None:
                continue
            pool = "gpu"
        else:
            pool = _FARM_POOLS[counted % len(_FARM_POOLS)]
            counted += 1
        works.append(Work(pool, slot.cpus, max(1, len(slot.cores)), slot))
    beside = [
        s
        for s in plan.sharing
        if s.neighbour == decode.name and any(w.slot and w.slot.name == s.slot for w in works)
    ]
    worst = max(beside, key=lambda sharing: sharing.guarantee, default=None)
    return Seats(
        tuple(sorted(set(decode.cpus) & here)),
        tuple(works),
        everyone,
        worst.guarantee if worst else "none",
        worst.reason if worst else "the plan says nothing of it",
        plan.notes,
        decode.gpus[0] if decode.gpus else None,
    )


def _assumed(machine: Topology, wishes: Wishes | None, decode_gpu: bool) -> Wishes:
    gpus = (machine.gpus[0].uuid,) if decode_gpu and machine.gpus else ()
    half = max(1, len(machine.cores) // 2)
    cpus = sorted(cpu for core in machine.cores[:half] for cpu in core.cpus if cpu in machine.allowed_cpus)
    decode = NeighbourWish(name="decode", gpus=gpus, cores=cpulist.show(cpus) if cpus else 1)  # type: ignore[arg-type]
    slots = wishes.slots if wishes is not None and wishes.slots else ()
    if not slots:
        # the default slots, by name: a GPU that decode is about to use counts as taken
        spare = len(machine.gpus) > (1 if gpus else 0)
        gpu = (SlotWish(name="gpu", pools=("video", "render"), gpus=1, count="all"),) if spare else ()
        size = 2 if len(machine.cores) - half >= 2 else 1
        slots = (*gpu, SlotWish(name="cpu", pools=("encode", "render"), cores=size, count="all"))
    return Wishes(neighbours=(decode,), slots=slots)


def _halves(everyone: tuple[int, ...], why: str) -> Seats:
    """The first half for decode, the rest for the farm, by affinity alone; one CPU is shared."""
    half = max(1, len(everyone) // 2)
    farm = everyone[half:] or everyone
    works = [Work(pool, farm, max(1, len(farm) // 2)) for pool in _FARM_POOLS]
    shared = "C" if not everyone[half:] else "B"
    return Seats(everyone[:half], tuple(works), everyone, shared, why, (why,))


def unfenced(seats: Seats) -> tuple[Work, ...]:
    """The same host workers, as many and with as many threads, on every CPU: what the fence alone does."""
    return tuple(Work(work.pool, seats.everyone, work.threads) for work in seats.works if work.pool != "gpu")


def everywhere(seats: Seats) -> tuple[Work, ...]:
    """The same host work with isolation off: no fence, every CPU, decode's own too, and no niceness.

    Four processes for each CPU, shared out over the pools, one thread and one session each. Fewer would not
    do: the kernel's scheduler weighs a whole session as it weighs decode (autogroup), and a machine that is
    just full still finds decode a core.
    """
    pools = dict.fromkeys(work.pool for work in seats.works if work.pool != "gpu")
    names = tuple(pools) or ("encode",)
    copies = -(-PER_CPU * len(seats.everyone) // len(names))
    return tuple(Work(pool, seats.everyone, 1, copies=copies) for pool in names)


def loads_in_words(works: tuple[Work, ...]) -> list[str]:
    """What runs, for reports."""
    lines = []
    for pool in dict.fromkeys(work.pool for work in works):
        mine = [work for work in works if work.pool == pool]
        cpus = cpulist.show(sorted({cpu for work in mine for cpu in work.cpus}))
        count = sum(work.copies for work in mine)
        lines.append(f"{pool}: {count} x {mine[0].threads} threads on CPUs {cpus}, {kind_of(pool)}")
    return lines
