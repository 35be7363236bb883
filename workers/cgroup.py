"""A cgroup (version 2) of one slot, where we may make one: kill and freeze all that is in it at a stroke.

Where cgroups cannot be written, the keeper's walk down the process tree does the killing alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_MOUNTS = Path("/proc/self/mounts")
_OWN = Path("/proc/self/cgroup")


class Cgroup:
    """One cgroup folder that we made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, name: str) -> Cgroup | None:
        """A fresh, empty cgroup below our own, or ``None`` where there is no right to one.

        One of that name that an earlier agent left behind is killed and made anew.
        """
        parent = own_folder()
        if parent is None:
            return None
        group = cls(parent / name)
        try:
            if group.folder.is_dir():
                group.remove()
            group.folder.mkdir()
            if not os.access(group.folder / "cgroup.procs", os.W_OK):
                group.folder.rmdir()
                return None
        except OSError:
            return None
        return group

    def kill(self) -> bool:
        """SIGKILL to everything inside; ``False`` where the kernel has no ``cgroup.kill`` (before 5.14)."""
        return self._write("cgroup.kill", b"1")

    def freeze(self, frozen: bool) -> bool:
        """Stop everything inside, or let it go on; whether the kernel took it."""
        return self._write("cgroup.freeze", b"1" if frozen else b"0")

    def remove(self, wait_s: float = 2.0) -> None:
        """Kill what is inside and remove the folder, waiting that long for the last process to go."""
        self.freeze(False)
        self.kill()
        deadline = time.monotonic() + wait_s
        while True:
            try:
                self.folder.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                if time.monotonic() > deadline:
                    return
                time.sleep(0.005)

    def _write(self, name: str, data: bytes) -> bool:
        # os.write, not a file object: a buffered one hides the refusal
        with contextlib.suppress(OSError):
            fd = os.open(self.folder / name, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, data)
                return True
            finally:
                os.close(fd)
        return False


def own_folder() -> Path | None:
    """The folder of the version 2 cgroup that this process is in; ``None`` where there is none."""
    try:
        mount = next(
            Path(words[1].replace("\\040", " "))
            for words in (line.split() for line in _MOUNTS.read_text().splitlines())
            if words[2] == "cgroup2"
        )
        own = next(line[3:] for line in _OWN.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    folder = mount / own.lstrip("/")
    return folder if folder.is_dir() else None


def clear_leftovers(prefix: str) -> int:
    """Kill and remove cgroups of ours whose name begins so, left by an agent that was killed; how many."""
    parent = own_folder()
    if parent is None:
        return 0
    found = [folder for folder in parent.glob(f"{prefix}*") if folder.is_dir()]
    for folder in found:
        Cgroup(folder).remove()
    return len(found)
