"""What each node agent of one machine gives out, so that no two of them give out the same core or GPU.

A claim is an abstract unix socket (unix(7)) that the agent holds open: its name says what is claimed, by
which process and node. It needs no right and no folder, every user's agent on the machine sees it in
/proc/net/unix, and it is gone with its process, however that ended. Names belong to a network namespace:
agents in containers with networks of their own do not see each other, and there it is the containers' cpusets
that have to be apart.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_pinning import cpulist, files
from gpu_pinning.errors import Claimed
from gpu_pinning.plan import SlotPlan

_HEAD = "stillframe/claim/"
_TURN = "stillframe/claiming"
_TURN_S = 5.0
_NAME = re.compile(rf"@{_HEAD}(\d+)/([^/]*)/(cpus|gpu)/(\S+)$")
_NODE_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Claim:
    """CPUs, or one GPU or MIG instance, that an agent gives to its slots."""

    pid: int
    node: str
    cpus: frozenset[int] = frozenset()
    gpu: str = ""


def claims(root: Path = Path("/")) -> list[Claim]:
    """All claims on this machine (this network namespace)."""
    found = []
    for row in (files.read(root / "proc/net/unix") or "").splitlines():
        if match := _NAME.search(row):
            pid, node, kind, what = int(match[1]), match[2], match[3], match[4]
            if kind == "gpu":
                found.append(Claim(pid, node, gpu=what))
            else:
                with contextlib.suppress(ValueError):
                    found.append(Claim(pid, node, cpus=frozenset(cpulist.parse(what))))
    return found


def clashes(slots: Iterable[SlotPlan], taken: Iterable[Claim], pid: int | None) -> list[str]:
    """What others than ``pid`` give out of what ``slots`` sit on, a text for each of their agents. Pure."""
    wanted_cpus = {cpu for slot in slots for cpu in slot.cpus}
    wanted_gpus = _gpus(slots)
    cpus: dict[tuple[int, str], set[int]] = {}
    gpus: dict[tuple[int, str], set[str]] = {}
    for claim in taken:
        if claim.pid == pid:
            continue
        who = (claim.pid, claim.node)
        if both := wanted_cpus & claim.cpus:
            cpus.setdefault(who, set()).update(both)
        if claim.gpu in wanted_gpus:
            gpus.setdefault(who, set()).add(claim.gpu)
    texts = []
    for who in sorted({*cpus, *gpus}):
        what = [f"CPUs {cpulist.show(cpus[who])}"] if who in cpus else []
        what += [f"GPU {gpu}" for gpu in sorted(gpus.get(who, ()))]
        given = f"{' and '.join(what)} {'are' if who in cpus else 'is'} given out already"
        texts.append(f"{given} by the agent of node {who[1]!r} (pid {who[0]}) on this machine")
    return texts


APART = (
    'stop that agent; or, to run two on one machine, name CPUs (`cpus = "0-3"`) and GPUs for every slot in '
    "the farm.toml of both, so that they have none in common"
)
"""What to do about a clash."""


class Claims:
    """The claims of this process for its node. Threads may share one."""

    def __init__(self, node: str) -> None:
        self._node = re.sub(r"[^A-Za-z0-9_.-]", "-", node)[:_NODE_CHARACTERS]
        self._held: dict[str, socket.socket] = {}

    def add(self, slots: Iterable[SlotPlan]) -> None:
        """Claim what ``slots`` sit on as well. Raises Claimed, with nothing new claimed, where others do."""
        slots = tuple(slots)
        with _turn():
            if texts := clashes(slots, claims(), os.getpid()):
                raise Claimed(f"{'; '.join(texts)}: {APART}")
            for name in self._names(slots) - self._held.keys():
                self._held[name] = _bind(name)

    def keep(self, slots: Iterable[SlotPlan]) -> None:
        """Let go of all but what ``slots`` sit on."""
        names = self._names(tuple(slots))
        # first what is held already in other words: another span of the same CPUs
        for name in names - self._held.keys():
            self._held[name] = _bind(name)
        for name in self._held.keys() - names:
            self._held.pop(name).close()

    def close(self) -> None:
        """Let go of everything."""
        self.keep(())

    def _names(self, slots: tuple[SlotPlan, ...]) -> set[str]:
        cpus = cpulist.show(cpu for slot in slots for cpu in slot.cpus)
        # a name has 107 bytes: one for each span of CPUs
        what = [f"cpus/{span}" for span in cpus.split(",") if span] + [f"gpu/{gpu}" for gpu in _gpus(slots)]
        return {f"{_HEAD}{os.getpid()}/{self._node}/{each}" for each in what}


def _gpus(slots: Iterable[SlotPlan]) -> set[str]:
    """What slots own alone; an MPS slot shares its GPU by wish."""
    return {device for slot in slots if slot.kind != "mps" for device in slot.devices}


def _bind(name: str) -> socket.socket:
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(f"\0{name}")
    except OSError:
        held.close()
        raise
    return held


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """One agent of the machine at a time looks and claims."""
    deadline = time.monotonic() + _TURN_S
    while True:
        try:
            turn = _bind(_TURN)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise Claimed(
                    f"another agent has been claiming its cores for {_TURN_S:g} s: {error}"
                ) from None
            time.sleep(0.01)
    with turn:
        yield
