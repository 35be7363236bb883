"""What a .blend says before Blender opens it: the engines of its scenes, and every path that it names.

Blender maps an engine that no longer exists to another in silence, and opens linked libraries while it opens
the file: both are looked at first. The looking is done by :mod:`jobs.render.blender.reader`, in a child that
is confined as Blender itself, with less time, memory and disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from farm.errors import EscapedPath, PermanentFailure, TimedOut
from jobs.engine import Host
from jobs.render.bounds import Limits
from jobs.render.child_process import Child
from jobs.render.driver import ROOT_FOLDER, process_limit
from jobs.render.held import Clock, Held
from jobs.render.sandbox import Room, confinement, farm_python

KNOWN_ENGINES: Final = {
    "CYCLES": "cycles",
    "BLENDER_EEVEE": "eevee",
    "BLENDER_EEVEE_NEXT": "eevee",
    "BLENDER_WORKBENCH": "workbench",
}
"""Engines as files name them, and what a job calls them."""
READER: Final = "jobs.render.blender.reader"
TIME_LIMIT_S = 120.0
"""Looking through a production file of a gigabyte takes about ten seconds."""
MEMORY_LIMIT = 3 * 2**30
UNPACKED_LIMIT = 4 * 2**30
"""What all compressed files of a job may unpack to, on disk, while they are looked through."""


@dataclass(frozen=True, slots=True)
class SceneFile:
    """``engines`` and ``views`` map scenes to the engine and the view transform that the file names;
    ``outside`` are paths that leave the job; ``unread`` names data-blocks that could not be followed;
    ``saved_by`` is the Blender that wrote it (major, minor)."""

    engines: dict[str, str]
    views: dict[str, str]
    outside: tuple[str, ...]
    unread: tuple[str, ...]
    saved_by: tuple[int, int]

    def fits(self, scene: str, version: str) -> None:
        """Raise :class:`farm.errors.PermanentFailure` where Blender ``version`` is older than the file.

        Some versions crash on a file of the future, so this is said before they see it.
        """
        if self.saved_by > tuple(int(part) for part in version.split(".")):
            saved = ".".join(map(str, self.saved_by))
            raise PermanentFailure(
                f"{scene} was saved by Blender {saved}, and this node renders it with {version}; name a "
                "blender.version that is at least as new, or save the file for an older one"
            )


def read(room: Room, scene: str, beside: Child, host: Host) -> SceneFile:
    """Look into the .blend at job path ``scene`` of ``room``; ``beside`` is a child that runs meanwhile.

    A path that leaves the assets counts as missing where children cannot see it.

    Raises :class:`farm.errors.PermanentFailure` for a file that is no .blend, is damaged, or cannot be looked
    through within the limits, and :class:`farm.errors.EscapedPath` where an unconfined Blender would open a
    file outside the job's assets.
    """
    confined = confinement().name == "bubblewrap"
    # where a killed slot's folders are swept
    folder = Path(tempfile.mkdtemp(prefix=f"{ROOT_FOLDER}{os.getpid()}-", dir=host.scratch.parent))
    held = None
    try:
        program = farm_python(READER)
        # the reader bounds itself, and can say so then; what holds from outside is for a reader gone mad
        limits = Limits(2 * MEMORY_LIMIT, process_limit(1))
        child = Child(program, Room(room.inputs, folder, room.links), {"TMPDIR": "."}, limits)
        held = Held(child, READER, limits.memory)
        with host.frozen([beside.pid, child.pid]):
            held.ask(
                "look",
                root=str(child.inputs),
                scene=scene,
                placed=[] if confined else [str(path) for path in room.links.values()],
                memory=MEMORY_LIMIT,
                unpacked=UNPACKED_LIMIT,
            )
            found = held.wait(("read",), scene, Clock(TIME_LIMIT_S), host)
    except TimedOut:
        raise PermanentFailure(
            f"{scene} cannot be looked through within {TIME_LIMIT_S:g} s; it is damaged, or far too large"
        ) from None
    except PermanentFailure as error:
        words = error.message.removeprefix(f"{scene}: ")
        raise PermanentFailure(f"{scene} cannot be read as a .blend file: {words}") from None
    finally:
        if held is not None:
            held.end(politely=False)
        shutil.rmtree(folder, ignore_errors=True)
    if not confined:
        for named, exists in zip(found["outside"], found["exists"], strict=True):
            if exists:
                raise EscapedPath(
                    f"{scene} names {named[:200]!r}, which leaves the job's assets; name a file of the job"
                )
        if found["unread"]:
            raise EscapedPath(
                f"{scene} holds data-blocks whose paths cannot be checked ({found['unread'][0]}), so it is "
                "opened under bubblewrap only; apt-get install bubblewrap"
            )
    major, minor = found["saved_by"]
    return SceneFile(
        found["engines"],
        found["views"],
        tuple(found["outside"]),
        tuple(found["unread"]),
        (int(major), int(minor)),
    )
