"""The cgroups of one slot: made, limited, frozen, killed and removed; v1 or v2, controller by controller.

Each setting is written in one call and read back; ``Setting.found`` is what the kernel answered, never what
was asked for. Setting names: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from gpu_pinning import cpulist, files, rights
from gpu_pinning.errors import FenceError
from gpu_pinning.machine import CONTROLLERS, CgroupRight, Part


class Setting(Part):
    """One enforcement: what was wanted and what the machine says now."""

    what: str
    wanted: str
    found: str
    ok: bool
    weak: bool = False
    """Held, but the slot itself could undo it."""
    error: str = ""


def settled(what: str, wanted: str, found: str | None, *, weak: bool = False, error: str = "") -> Setting:
    """A setting that is right where both texts are the same."""
    return Setting(
        what=what, wanted=wanted, found=found or "", ok=not error and wanted == found, weak=weak, error=error
    )


class SlotGroup:
    """The folders of one slot. Where there is a right to no controller at all, ``folders`` is empty.

    ``instance`` keeps apart the slots of several agents on one machine.
    """

    def __init__(self, name: str, cgroups: Iterable[CgroupRight], instance: str = "farm") -> None:
        self.name = name
        granted = {r.controller: r for r in cgroups if r.granted and r.base is not None}
        self.versions = {controller: right.version for controller, right in granted.items()}
        self.folders: dict[str, Path] = {
            controller: Path(right.base or "") / f"stillframe-{instance}-{name}"
            for controller, right in granted.items()
            if controller in CONTROLLERS
        }
        self._limits: dict[Path, str] = {}
        """What each limit's file is to say."""

    @property
    def paths(self) -> list[Path]:
        """Each folder once."""
        return sorted(set(self.folders.values()))

    @property
    def procs_files(self) -> list[str]:
        """Files that a process writes 0 to, to join."""
        return [str(folder / "cgroup.procs") for folder in self.paths]

    def make(self) -> None:
        """Make the folders; one that a dead agent left is used again once it is empty. Raises FenceError."""
        for controller, folder in self.folders.items():
            base = folder.parent
            try:
                if self.versions[controller] == 2 and controller not in ("kill", "freeze", "devices"):
                    enabled = (files.read(base / "cgroup.subtree_control") or "").split()
                    if controller not in enabled:
                        files.write(base / "cgroup.subtree_control", f"+{controller}")
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise FenceError(f"{controller}: {folder}: {error.strerror}") from None
        if left := self.pids():
            raise FenceError(f"slot {self.name}: processes {left} of an earlier run are still in its group")

    def pids(self) -> list[int]:
        """Processes in any of the folders."""
        found: set[int] = set()
        for folder in self.paths:
            found |= self.pids_of(folder)
        return sorted(found)

    @staticmethod
    def pids_of(folder: Path) -> set[int]:
        """Processes in one folder and in the groups that the slot made below it for its children."""
        found: set[int] = set()
        for group in (folder, *_below(folder)):
            found |= {int(x) for x in (files.read(group / "cgroup.procs") or "").split()}
        return found

    @staticmethod
    def threads_of(folder: Path) -> set[int] | None:
        """Threads in one v1 folder and in the groups below it; None where it is gone."""
        found: set[int] = set()
        for group in (folder, *_below(folder)):
            text = files.read(group / "tasks")
            if text is None:
                return None
            found |= {int(x) for x in text.split()}
        return found

    def limit(self, controller: str, names: tuple[str, str], text: str, expect: str | None = None) -> Setting:
        """:meth:`put` a limit that is to stay; :meth:`read_limits` tells of it."""
        row = self.put(controller, names, text, expect)
        if row.ok:
            self._limits[self.folders[controller] / row.what] = row.wanted
        return row

    def read_limits(self) -> list[Setting]:
        """The limits that were set, as they are now; none while the group is not there."""
        return [
            settled(path.name, wanted, files.read(path))
            for path, wanted in sorted(self._limits.items())
            if path.parent.exists()
        ]

    def oom_kills(self) -> int | None:
        """How many of its processes its own memory limit has ended; None where that is not counted."""
        folder = self.folders.get("memory")
        if folder is None:
            return None
        name = "memory.oom_control" if self.versions["memory"] == 1 else "memory.events"
        for row in (files.read(folder / name) or "").splitlines():
            key, _, value = row.partition(" ")
            if key == "oom_kill" and value.isdigit():
                return int(value)
        return None

    def put(self, controller: str, names: tuple[str, str], text: str, expect: str | None = None) -> Setting:
        """Write a setting, named ``(v1, v2)``, and read it back."""
        folder = self.folders[controller]
        name = names[self.versions[controller] - 1]
        try:
            files.write(folder / name, text)
        except OSError as error:
            return settled(name, text, None, error=f"{folder / name}: {error.strerror}")
        return settled(name, expect or text, files.read(folder / name))

    def set_cpus(self, cpus: Iterable[int], nodes: Iterable[int]) -> list[Setting]:
        """Hold the group to these CPUs and memory nodes; what counts is the effective set."""
        wanted_cpus, wanted_nodes = cpulist.show(cpus), cpulist.show(nodes)
        rows = []
        if not wanted_nodes:
            # A machine that tells no nodes: v1 still wants the group's own list, v2 inherits.
            wanted_nodes = files.read(self.folders["cpuset"].parent / "cpuset.mems") or ""
        for setting, wanted in (("cpuset.mems", wanted_nodes), ("cpuset.cpus", wanted_cpus)):
            if not wanted and self.versions["cpuset"] == 2:
                continue
            row = self.put("cpuset", (setting, setting), wanted)
            if row.ok:
                kind = setting.partition(".")[2]
                effective = ("cpuset.effective_" + kind, f"cpuset.{kind}.effective")
                name = effective[self.versions["cpuset"] - 1]
                row = settled(setting, wanted, files.read(self.folders["cpuset"] / name))
            rows.append(row)
        return rows

    def set_memory(self, limit: int) -> list[Setting]:
        """At most this many bytes, swap included where the kernel counts it. Rounded down to whole pages.

        The page cache of what the group reads and writes counts. From seven eighths on the kernel takes
        pages back (``memory.high``; v1's soft limit), so that a big write costs the writer and nobody else.
        """
        page = os.sysconf("SC_PAGESIZE")
        text = str(limit // page * page)
        rows = [self.limit("memory", ("memory.limit_in_bytes", "memory.max"), text)]
        swap = (("memory.memsw.limit_in_bytes", text), ("memory.swap.max", "0"))[self.versions["memory"] - 1]
        if (self.folders["memory"] / swap[0]).exists():
            rows.append(self.limit("memory", (swap[0], swap[0]), swap[1]))
        high = ("memory.soft_limit_in_bytes", "memory.high")
        if (self.folders["memory"] / high[self.versions["memory"] - 1]).exists():
            rows.append(self.limit("memory", high, str(limit * 7 // 8 // page * page)))
        return rows

    def set_processes(self, limit: int) -> list[Setting]:
        """At most this many processes and threads."""
        return [self.limit("pids", ("pids.max", "pids.max"), str(limit))]

    def set_disk_write(self, device: str, limit: int) -> list[Setting]:
        """At most this many bytes a second to a disk (``8:0``)."""
        if self.versions["io"] == 1:
            return [self.limit("io", ("blkio.throttle.write_bps_device", ""), f"{device} {limit}")]
        return [
            self.limit(
                "io",
                ("", "io.max"),
                f"{device} wbps={limit}",
                f"{device} rbps=max wbps={limit} riops=max wiops=max",
            )
        ]

    def set_cpu_weight(self, weight: int) -> Setting:
        """Share of contended CPUs: 100 is usual, 1 the least. v1 counts in shares of 1024."""
        if self.versions.get("cpu") == 1:
            return self.limit("cpu", ("cpu.shares", ""), str(max(2, weight * 1024 // 100)))
        return self.limit("cpu", ("", "cpu.weight"), str(weight))

    def set_cpu_limit(self, cpus: float | None) -> Setting:
        """At most this much CPU time, in CPUs; None lifts the limit. The period is 10 ms, to pause
        briefly."""
        period = 10_000
        quota = None if cpus is None else max(1000, int(cpus * period))
        if self.versions.get("cpu") == 1:
            self.put("cpu", ("cpu.cfs_period_us", ""), str(period))
            return self.put("cpu", ("cpu.cfs_quota_us", ""), "-1" if quota is None else str(quota))
        return self.put("cpu", ("", "cpu.max"), f"{'max' if quota is None else quota} {period}")

    # -- freeze and kill -----------------------------------------------------------------------------

    def _await(self, done: object, seconds: float, watch: Path | None = None) -> bool:
        """Wait until ``done()``; a v2 events file wakes us (poll(2) gives POLLPRI), else a short sleep."""
        deadline = time.monotonic() + seconds
        fd = os.open(watch, os.O_RDONLY | os.O_CLOEXEC) if watch else -1
        try:
            poller = select.poll()
            if fd >= 0:
                poller.register(fd, select.POLLPRI)
            while not done():  # type: ignore[operator]
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if fd >= 0:
                    poller.poll(min(left, 0.05) * 1000)
                else:
                    time.sleep(min(left, 0.002))
            return True
        finally:
            if fd >= 0:
                os.close(fd)

    def _event(self, folder: Path, name: str) -> str:
        for row in (files.read(folder / "cgroup.events") or "").splitlines():
            key, _, value = row.partition(" ")
            if key == name:
                return value
        return ""

    def freeze(self, seconds: float = 5.0) -> float:
        """Stop every process of the group; returns how long it took. Raises FenceError."""
        return self._freeze(True, seconds)

    def thaw(self, seconds: float = 5.0) -> float:
        """Let the group run again; returns how long it took. Raises FenceError."""
        return self._freeze(False, seconds)

    def _freeze(self, stop: bool, seconds: float) -> float:
        folder = self.folders.get("freeze")
        if folder is None:
            raise FenceError(f"slot {self.name}: no right to freeze by cgroup")
        began = time.monotonic()
        try:
            if self.versions["freeze"] == 2:
                files.write(folder / "cgroup.freeze", "1" if stop else "0")
                wanted = "1" if stop else "0"
                done = self._await(
                    lambda: self._event(folder, "frozen") == wanted, seconds, folder / "cgroup.events"
                )
            else:
                state = "FROZEN" if stop else "THAWED"
                files.write(folder / "freezer.state", state)
                done = self._await(lambda: files.read(folder / "freezer.state") == state, seconds)
        except OSError as error:
            raise FenceError(f"freeze: {folder}: {error.strerror}") from None
        if not done:
            word = "frozen" if stop else "thawed"
            raise FenceError(f"slot {self.name} was not {word} within {seconds} s")
        return time.monotonic() - began

    @property
    def frozen(self) -> bool:
        """Whether the group stands still now."""
        folder = self.folders.get("freeze")
        if folder is None:
            return False
        if self.versions["freeze"] == 2:
            return self._event(folder, "frozen") == "1"
        return files.read(folder / "freezer.state") == "FROZEN"

    def kill(self, seconds: float = 10.0) -> float:
        """End every process of the group, frozen ones too, and see it empty. Raises FenceError."""
        began = time.monotonic()
        folder = self.folders.get("kill")
        empty = True
        if folder is not None:
            try:
                files.write(folder / "cgroup.kill", "1")
                empty = self._await(
                    lambda: self._event(folder, "populated") == "0", seconds, folder / "cgroup.events"
                )
            except FileNotFoundError:
                pass  # removed already, so nobody is in it
            except OSError as error:
                raise FenceError(f"kill: {folder}: {error.strerror}") from None
        # Without cgroup.kill, or for somebody who is in one of the v1 folders alone.
        empty = empty and self._await(self._kill_by_pid, seconds)
        if folder is None and self.frozen:
            self.thaw()
        if not empty:
            raise FenceError(f"slot {self.name}: processes {self.pids()} outlived kill for {seconds} s")
        return time.monotonic() - began

    def strike(self) -> bool:
        """SIGKILL to every process of the group without waiting for their ends; whether there is a right to.

        Nothing can fork itself out of it. Where this says no, the processes are ended one by one.
        """
        folder = self.folders.get("kill")
        if folder is None:
            return False
        try:
            files.write(folder / "cgroup.kill", "1")
        except OSError:
            return False
        return True

    def _kill_by_pid(self) -> bool:
        left = self.pids()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if left and self.versions.get("freeze") == 1 and self.frozen:
            # A v1-frozen process dies only once it is thawed.
            with contextlib.suppress(FenceError):
                self.thaw()
        return not left

    def remove(self, seconds: float = 10.0) -> None:
        """Remove the folders. Raises FenceError where one stays."""
        for folder in self.paths:
            last: list[OSError] = []

            def gone(folder: Path = folder, last: list[OSError] = last) -> bool:
                try:
                    for below in reversed(_below(folder)):
                        below.rmdir()
                    folder.rmdir()
                except FileNotFoundError:
                    return True
                except OSError as error:
                    last[:] = [error]
                    return False
                return True

            if not self._await(gone, seconds):
                raise FenceError(f"{folder}: {last[0].strerror}")
        self._limits.clear()


def _below(folder: Path) -> list[Path]:
    """Groups below one, each after the one above it."""
    try:
        return sorted(path for path in folder.rglob("*") if path.is_dir())
    except OSError:
        # one that ended meanwhile has no processes to list
        return []


def prepare_delegation() -> bool:
    """Move this process into the leaf ``agent``, so that its v2 group may give controllers to slots.

    Only for a group that is ours alone, as under a systemd unit with Delegate=yes; with
    DelegateSubgroup=agent systemd did it already. Returns True where the process was moved. Raises
    FenceError.
    """
    own = rights.own_hierarchies().v2
    if own is None or own.name == rights.AGENT_LEAF:
        return False
    leaf = own / rights.AGENT_LEAF
    try:
        leaf.mkdir(exist_ok=True)
        for pid in (files.read(own / "cgroup.procs") or "").split():
            files.write(leaf / "cgroup.procs", pid)
    except OSError as error:
        raise FenceError(f"{own}: {error.strerror}; set Delegate=yes and DelegateSubgroup=agent") from None
    return True
