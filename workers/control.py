"""The control file: one small mapped file per slot, through which agent and slot talk without a system call.

Every field is an aligned 64-bit word in the machine's byte order, so that a reader never sees half of one.

====== ============ ====================================================================================
offset written by   meaning
====== ============ ====================================================================================
0      who makes it :data:`MAGIC`
8      agent        command word: ``serial << 16 | duty << 8 | command``; 0 when nothing was ever said
16     agent        standing orders of the slot, bits: :data:`STOP`: begin no further task, for it is to end;
                    :data:`WAIT`: claim nothing while this bit stands; :data:`STILL`: begin no
                    transaction that writes, for it is about to be frozen
24     agent        nanoseconds that it has frozen an attempt, and the serial of that attempt
64     slot         beat: grows once per beat while the slot's threads run
72     slot         serial of the attempt that it is on; 0 between attempts
80     slot         monotonic nanoseconds at which that attempt began
88     slot         monotonic nanoseconds of its last sign of progress
96     slot         nanoseconds that the farm has held that attempt (pause, throttle)
104    slot         progress of the attempt, 0 to 1, as the bits of a double
112    slot         process id of the slot
120    slot         last command word that it obeyed
128    slot         number of declared child process groups (at most :data:`MAX_GROUPS`)
136    slot         their ids
392    slot         1 once the database knows that this process takes tickets
400    slot         lowest and highest serial that it has claimed and not finished; 0 and 0: none
416    slot         how many of its threads write to the database, or are about to
512    slot         note: version (odd while it is being written), length in bytes, then UTF-8
====== ============ ====================================================================================

``serial`` is the attempt row's 48-bit integer. A word that names another attempt than the one the slot is on
is void, so a late word cannot hit the next task. The monotonic clock is one for all processes of a machine.

Measured on two shared cores: a ``host.check()`` with nothing to obey takes 65 ns; another process has seen
a word and answered after 4 us (``python -m tests.benchmarks.control``).
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

SIZE = 4096
MAGIC = int.from_bytes(b"STLCTL01", "little")
MAX_SERIAL = (1 << 48) - 1
MAX_GROUPS = 32
STOP, WAIT, STILL = 1, 2, 4
ALONE = "its node's agent cannot reach the database"
"""Why a slot that was told to wait holds itself in the database, until its agent can reach that as well."""
COMMAND_WORD = 1
"""Index of the command word among :attr:`SlotControl.words`."""
_COMMAND, _ORDER = COMMAND_WORD, 2
_FROZEN, _FROZEN_SERIAL = 3, 4
_BEAT, _SERIAL, _BEGAN, _PROGRESSED, _HELD, _FRACTION, _PID, _OBEYED = 8, 9, 10, 11, 12, 13, 14, 15
_GROUP_COUNT, _GROUPS = 16, 17
_READY = _GROUPS + MAX_GROUPS
_FIRST, _LAST = _READY + 1, _READY + 2
_WRITING = _READY + 3
_NOTE = 512
_NOTE_MAX = 480


class Command(IntEnum):
    """What the agent asks of the attempt that the word names."""

    RUN = 0
    THROTTLE = 1
    """Work for ``duty`` percent of the time."""
    PAUSE = 2
    """Stand still until another word comes."""
    PARK = 3
    """Save a checkpoint and give the task back."""
    CANCEL = 4
    EXPIRE = 5
    """The attempt passed its time limit or its no-progress limit: fail."""
    FENCE = 6
    """The attempt is over: its lease ended, and another one may be running."""


def pack(serial: int, command: Command, duty: int = 100) -> int:
    """The command word. ``duty`` is a percentage, 1 to 100."""
    if not 0 <= serial <= MAX_SERIAL:
        raise ValueError(f"serial {serial} does not fit in 48 bits")
    if not 0 < duty <= 100:
        raise ValueError(f"duty {duty} is not a percentage from 1 to 100")
    return serial << 16 | duty << 8 | command


def unpack(word: int) -> tuple[int, int, Command]:
    """``(serial, duty, command)`` of a word; an unknown command reads as ``RUN``."""
    code = word & 0xFF
    return word >> 16, word >> 8 & 0xFF, Command(code) if code <= Command.FENCE else Command.RUN


class _Mapped:
    def __init__(self, path: Path) -> None:
        self.path = path
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size != SIZE:
                raise ValueError(f"{path} is not a control file: it has not {SIZE} bytes")
            self._map = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")
        if self._words[0] != MAGIC:
            self.close()
            raise ValueError(f"{path} is not a control file: its first bytes are wrong")

    def close(self) -> None:
        """Unmap. The file stays."""
        self._words.release()
        self._map.close()


@dataclass(frozen=True, slots=True)
class Reading:
    """What a slot says of itself. Times in monotonic seconds; ``serial`` 0 means between attempts."""

    beat: int
    serial: int
    began_at: float
    progressed_at: float
    held_s: float
    fraction: float
    pid: int
    ready: bool
    claimed: tuple[int, int]
    obeyed: int
    groups: tuple[int, ...]


class AgentControl(_Mapped):
    """The agent's end of a slot's control file."""

    @classmethod
    def create(cls, path: Path) -> AgentControl:
        """A fresh file, all zero, that replaces any other of that name (whose readers keep the old one)."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_bytes(MAGIC.to_bytes(8, "little") + bytes(SIZE - 8))
        temporary.chmod(0o600)
        temporary.rename(path)
        return cls(path)

    def command(self, serial: int, command: Command, duty: int = 100) -> None:
        """Say something to the attempt of that serial."""
        self._words[_COMMAND] = pack(serial, command, duty)

    def spoken(self) -> tuple[int, int, Command]:
        """The last word said: ``(serial, duty, command)``."""
        return unpack(self._words[_COMMAND])

    def frozen(self, serial: int, seconds: float) -> None:
        """How long we have frozen that attempt so far; said before it is let go."""
        self._words[_FROZEN_SERIAL] = 0
        self._words[_FROZEN] = int(seconds * 1e9)
        self._words[_FROZEN_SERIAL] = serial

    def order_stop(self) -> None:
        """The slot begins no further task."""
        self._words[_ORDER] |= STOP

    def order_wait(self, wait: bool) -> None:
        """The slot claims nothing for now, or may again."""
        self._set_order(WAIT, wait)

    def order_still(self, still: bool) -> None:
        """The slot begins no transaction that writes for now, or may again."""
        self._set_order(STILL, still)

    def writing(self) -> int:
        """How many threads of the slot write to the database, or are about to."""
        return self._words[_WRITING]

    def _set_order(self, bit: int, wanted: bool) -> None:
        order = self._words[_ORDER] & ~bit | (bit if wanted else 0)
        if order != self._words[_ORDER]:
            self._words[_ORDER] = order

    def read(self) -> Reading:
        """A reading whose fields belong to one attempt."""
        words = self._words
        while True:
            serial = words[_SERIAL]
            count = min(words[_GROUP_COUNT], MAX_GROUPS)
            reading = Reading(
                beat=words[_BEAT],
                serial=serial,
                began_at=words[_BEGAN] / 1e9,
                progressed_at=words[_PROGRESSED] / 1e9,
                held_s=words[_HELD] / 1e9,
                fraction=struct.unpack("d", words[_FRACTION].to_bytes(8, "little"))[0],
                pid=words[_PID],
                ready=bool(words[_READY]),
                claimed=(words[_FIRST], words[_LAST]),
                obeyed=words[_OBEYED],
                groups=tuple(words[_GROUPS : _GROUPS + count]),
            )
            if words[_SERIAL] == serial:
                return reading

    def note(self) -> str:
        """The attempt's own words on where it is."""
        for _ in range(100):
            version, length = struct.unpack_from("QQ", self._map, _NOTE)
            raw = self._map[_NOTE + 16 : _NOTE + 16 + min(length, _NOTE_MAX)]
            if version % 2 == 0 and struct.unpack_from("Q", self._map, _NOTE)[0] == version:
                return raw.decode("utf-8", "replace")
        return ""


class SlotControl(_Mapped):
    """The slot's end of its control file.

    Other threads may call :meth:`beat`, and :meth:`writing` and :meth:`keeps_still` one at a time.
    """

    @property
    def words(self) -> memoryview[int]:
        """The mapped words, for the one reader that cannot afford a call."""
        return self._words

    def hello(self, pid: int) -> None:
        """Say who we are."""
        self._words[_PID] = pid

    def ready(self) -> None:
        """The database knows that this process takes tickets."""
        self._words[_READY] = 1

    def claimed(self, first: int, last: int) -> None:
        """The attempts of the present ticket: leases are extended for these and no others."""
        self._words[_FIRST] = 0
        self._words[_LAST] = last
        self._words[_FIRST] = first

    def beat(self) -> None:
        """Show that the process runs."""
        self._words[_BEAT] += 1

    def word(self) -> int:
        """The command word as it stands (one aligned load)."""
        return self._words[_COMMAND]

    def frozen_s(self, serial: int) -> float:
        """How long the agent has frozen that attempt, which could not notice it itself."""
        return self._words[_FROZEN] / 1e9 if self._words[_FROZEN_SERIAL] == serial else 0.0

    def stopping(self) -> bool:
        """Whether no further task is to be begun."""
        return bool(self._words[_ORDER] & STOP)

    def waiting(self) -> bool:
        """Whether nothing is to be claimed for now."""
        return bool(self._words[_ORDER] & WAIT)

    def keeps_still(self) -> bool:
        """Whether no transaction that writes is to be begun for now."""
        return bool(self._words[_ORDER] & STILL)

    def writing(self, threads: int) -> None:
        """So many of our threads write to the database, or are about to."""
        self._words[_WRITING] = threads

    def begin(self, serial: int) -> None:
        """We are now on this attempt."""
        words = self._words
        now = time.monotonic_ns()
        words[_SERIAL] = 0
        words[_HELD] = 0
        words[_FRACTION] = 0
        words[_GROUP_COUNT] = 0
        words[_BEGAN] = now
        words[_PROGRESSED] = now
        self.note("")
        words[_SERIAL] = serial

    def end(self) -> None:
        """We are on no attempt."""
        self._words[_SERIAL] = 0
        self._words[_GROUP_COUNT] = 0

    def progressed(self, fraction: float | None = None) -> None:
        """A sign of progress, and how far it is where that is known."""
        if fraction is not None:
            self._words[_FRACTION] = int.from_bytes(struct.pack("d", fraction), "little")
        self._words[_PROGRESSED] = time.monotonic_ns()

    def held(self, seconds: float) -> None:
        """Time that the farm has held this attempt so far."""
        self._words[_HELD] = int(seconds * 1e9)

    def obeyed(self, word: int) -> None:
        """The word that we act upon."""
        self._words[_OBEYED] = word

    def groups(self, pids: Sequence[int]) -> None:
        """Child process groups that go with this attempt. Raises :class:`ValueError` for too many."""
        if len(pids) > MAX_GROUPS:
            raise ValueError(f"an attempt can declare at most {MAX_GROUPS} process groups, not {len(pids)}")
        self._words[_GROUP_COUNT] = 0
        for place, pid in enumerate(pids):
            self._words[_GROUPS + place] = pid
        self._words[_GROUP_COUNT] = len(pids)

    def note(self, text: str) -> None:
        """Where the attempt is, in words; cut to what fits."""
        raw = text.encode()[:_NOTE_MAX]
        version = struct.unpack_from("Q", self._map, _NOTE)[0]
        struct.pack_into("Q", self._map, _NOTE, version | 1)
        struct.pack_into("Q", self._map, _NOTE + 8, len(raw))
        self._map[_NOTE + 16 : _NOTE + 16 + len(raw)] = raw
        struct.pack_into("Q", self._map, _NOTE, (version | 1) + 1)
