"""One slot's fence: put up before exec, read back, taken down.

    fence = Fence.create(machine, slot, run_dir)
    fence.apply()                                  # cgroups and limits
    child = subprocess.Popen(fence.command(argv), env={**base, **fence.environment()})
    fence.await_launch(child.pid)                  # what launch.py did to itself before exec
    fence.read_back(child.pid)                     # what holds now
    fence.freeze(); fence.thaw(); fence.kill(child.pid); fence.remove()

The child runs ``launch.py`` first, which joins the groups, sets affinity and policy, tries the forbidden
device nodes and then becomes the slot under the same pid.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from gpu_pinning import actuator, bpf_devices, cpulist, device_fence, files, procfs
from gpu_pinning.errors import FenceError, KillRefused
from gpu_pinning.group import Setting, SlotGroup, settled
from gpu_pinning.machine import Topology
from gpu_pinning.plan import SlotPlan

_IONICE = {"best-effort": [2, 7], "idle": [3, 0]}


class Fence:
    """The fence of one slot of the plan."""

    def __init__(self, machine: Topology, slot: SlotPlan, run_dir: Path) -> None:
        self.slot = slot
        self.run_dir = run_dir.absolute()
        instance = hashlib.sha256(os.fsencode(self.run_dir)).hexdigest()[:8]
        self.group = SlotGroup(slot.name, machine.cgroups, instance)
        # Binding to every node there is says nothing, and is refused in many containers.
        self._bind = bool(set(machine.allowed_nodes) - set(slot.nodes))
        self.settings: list[Setting] = []
        """What apply() found."""
        self._spec = self.run_dir / f"{slot.name}.launch.json"
        self._report = self.run_dir / f"{slot.name}.fence.json"

    @classmethod
    def create(cls, machine: Topology, slot: SlotPlan, run_dir: Path) -> Fence:
        """A fence for ``slot``; nothing is touched yet.

        ``run_dir`` takes two small files per slot; groups are named after it, so that two agents on one
        machine with folders of their own never meet.
        """
        return cls(machine, slot, run_dir)

    def environment(self) -> dict[str, str]:
        """What is set before exec."""
        return dict(self.slot.environment)

    def apply(self) -> list[Setting]:
        """Make the groups, set limits and device rules; returns each setting as read back.

        Raises FenceError where a group cannot be made or a limit that was asked for does not hold.
        """
        slot, group = self.slot, self.group
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._report.unlink(missing_ok=True)
        if not group.pids():
            group.remove()  # rules of an earlier run go with it
        group.make()
        rows: list[Setting] = []
        if "cpuset" in group.folders:
            rows += group.set_cpus(slot.cpus, slot.nodes)
        for controller, limit, setter in (
            ("memory", slot.limits.memory_bytes, group.set_memory),
            ("pids", slot.limits.processes, group.set_processes),
            ("cpu", self._weight(), lambda weight: [group.set_cpu_weight(weight)]),
        ):
            if limit is None:
                continue
            if controller in group.folders:
                rows += setter(limit)
            else:
                rows.append(settled(controller, str(limit), None, error="no right to this controller"))
        if slot.limits.disk_write_bytes is not None:
            rows += self._disk_limit(slot.limits.disk_write_bytes)
        rows += self._device_rules()
        self.settings = rows
        failed = [row for row in rows if not row.ok]
        if failed:
            self.remove()
            texts = [f"{r.what}: {r.error or f'wanted {r.wanted}, found {r.found}'}" for r in failed]
            raise FenceError(f"slot {slot.name}: " + "; ".join(texts))
        self._write_spec([], self._spec, self._report)
        return rows

    def _weight(self) -> int | None:
        """The slot's weight; the usual one only where it can be set."""
        limits = self.slot.limits
        return limits.cpu_weight if limits.cpu_weight_required or "cpu" in self.group.folders else None

    def clear(self, seconds: float = 10.0) -> bool:
        """End what an earlier run left in this slot's groups; True where there was something.

        Raises KillRefused for an MPS slot, FenceError where something outlives it.
        """
        left = bool(self.group.pids())
        if left:
            self.kill(seconds=seconds)
        return left

    def _disk_limit(self, limit: int) -> list[Setting]:
        path = Path(self.slot.limits.disk_path or self.run_dir)
        if "io" not in self.group.folders:
            return [settled("disk write", str(limit), None, error="no right to the io controller")]
        disk = disk_of(path)
        if disk is None:
            return [
                settled("disk write", str(limit), None, error=f"{path} is on no disk that can be limited")
            ]
        return self.group.set_disk_write(disk, limit)

    def _device_rules(self) -> list[Setting]:
        """Rules are read back by opening the nodes from inside, in launch.py."""
        method = self.slot.fence.devices
        if not self.slot.deny or method not in ("devices-v1", "devices-bpf"):
            return []
        numbers = device_fence.denied_numbers(self.slot.deny, keep_none=self.slot.kind == "cpu")
        if method == "devices-v1":
            folder = self.group.folders.get("devices")
            if folder is None:
                raise FenceError(f"slot {self.slot.name}: planned with devices-v1, which is not there")
            device_fence.deny_v1(folder, numbers)
        else:
            folder = self.group.folders.get("kill")
            if folder is None:
                raise FenceError(f"slot {self.slot.name}: planned with devices-bpf, without a v2 group")
            bpf_devices.deny(folder, numbers)
        return []

    def _write_spec(
        self, argv: list[str], spec_path: Path, report: Path, *, parent: int | None = None
    ) -> None:
        report.unlink(missing_ok=True)
        slot = self.slot
        namespace = {"mount-namespace": "mount", "user-namespace": "user"}.get(slot.fence.devices)
        # With a cpuset the policy is a second lock on the same door; without one read_back() tells of it.
        lenient = ["ionice", "memory policy"]
        if not slot.fence.device_fence_required:
            lenient += ["devices", "namespace"]
        spec = {
            "argv": argv,
            "join": self.group.procs_files,
            "cpus": list(slot.cpus),
            "nodes": list(slot.nodes) if self._bind else [],
            "nice": slot.nice or None,
            "ionice": _IONICE.get(slot.ionice),
            "deny": [node.path for node in slot.deny],
            "namespace": namespace if slot.deny else None,
            "parent": parent,
            "report": str(report),
            "lenient": lenient,
        }
        spec_path.write_text(json.dumps(spec), encoding="utf-8")

    def command(self, argv: list[str], *, die_with_us: bool = True) -> list[str]:
        """``argv`` behind the launcher. It dies with the thread that started it: start it from one that
        stays.

        ``die_with_us=False``: somebody else starts it, who sees to its end. Raises FenceError for an MPS slot
        without an MPS daemon: CUDA would take turns with the neighbour instead, and not say so.
        """
        self._require_mps()
        self._write_spec(argv, self._spec, self._report, parent=os.getpid() if die_with_us else None)
        return self._launcher(self._spec)

    def _require_mps(self) -> None:
        pipes = self.slot.environment.get("CUDA_MPS_PIPE_DIRECTORY")
        if pipes is None:
            return
        pid = files.read_int(Path(pipes) / "nvidia-cuda-mps-control.pid")
        daemon = procfs.process(pid) if pid is not None else None
        if daemon is None or daemon.state in "ZX" or not (Path(pipes) / "control").exists():
            raise FenceError(
                f"slot {self.slot.name}: no MPS daemon serves {pipes}; start it as the user of the "
                f"server that shares the GPU: CUDA_MPS_PIPE_DIRECTORY={pipes} nvidia-cuda-mps-control -d"
            )

    @staticmethod
    def _launcher(spec: Path) -> list[str]:
        return [sys.executable, "-I", "-S", str(device_fence.LAUNCHER), str(spec)]

    def launched(self, pid: int) -> list[Setting] | None:
        """What the launcher that became ``pid`` found of each of its steps; None while it has not said."""
        text = files.read(self._report)
        report = json.loads(text) if text else {}
        if report.get("pid") != pid:
            return None
        return [
            settled(
                str(row["what"]),
                json.dumps(row["wanted"]),
                json.dumps(row["found"]),
                weak=self._is_weak(str(row["what"])),
                error=str(row["error"]),
            )
            for row in report["steps"]
        ]

    def await_launch(self, pid: int, seconds: float = 20.0) -> list[Setting]:
        """What the launcher reports. Raises FenceError where it refuses or says nothing in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            rows = self.launched(pid)
            if rows is not None:
                bad = [
                    row for row in rows if not row.ok and row.what not in ("ionice", "devices", "namespace")
                ]
                if bad:
                    raise FenceError(f"slot {self.slot.name}: {bad[0].what}: {bad[0].error or bad[0].found}")
                return rows
            state = procfs.process(pid)
            if (state is None or state.state in "ZX") and not self._report.exists():
                raise FenceError(f"slot {self.slot.name}: the launcher ended without a report")
            time.sleep(0.005)
        raise FenceError(f"slot {self.slot.name}: no report of the launcher within {seconds} s")

    def _is_weak(self, what: str) -> bool:
        fence = self.slot.fence
        return {"affinity": fence.cpus == "affinity", "memory policy": fence.memory == "policy"}.get(
            what, False
        )

    def pids(self, pid: int | None = None) -> list[int]:
        """Processes of the slot: the group's, and where there is none, the family of ``pid``."""
        return self.group.pids() if self.group.folders else procfs.family(pid) if pid else []

    def read_back(self, pid: int) -> list[Setting]:
        """What holds now for the slot that runs as ``pid``, thread by thread."""
        slot = self.slot
        rows: list[Setting] = []
        weak = slot.fence.weak
        own = set(slot.cpus)
        for member in self.pids(pid):
            for tid in procfs.threads(member):
                seen = procfs.allowed(member, tid)
                if seen is None:
                    continue
                cpus, nodes = seen
                stray = sorted(set(cpus) - own)
                rows.append(
                    Setting(
                        what=f"CPUs of thread {tid}",
                        wanted=cpulist.show(slot.cpus),
                        found=cpulist.show(cpus),
                        ok=not stray,
                        weak=weak,
                    )
                )
                if slot.fence.memory == "cgroup":
                    rows.append(
                        Setting(
                            what=f"memory nodes of thread {tid}",
                            wanted=cpulist.show(slot.nodes),
                            found=cpulist.show(nodes),
                            ok=set(nodes) <= set(slot.nodes),
                        )
                    )
        if slot.fence.memory == "policy" and self._bind:
            policy = procfs.memory_policy(pid)
            rows.append(settled("memory policy", f"bind:{cpulist.show(slot.nodes)}", policy, weak=True))
        env = procfs.environment(pid)
        if env is not None:
            for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
                rows.append(settled(name, slot.environment[name], env.get(name)))
        rows.append(self._nice(pid))
        return [*rows, self.devices_held(pid)]

    def _nice(self, pid: int) -> Setting:
        try:
            found = os.getpriority(os.PRIO_PROCESS, pid)
        except OSError as error:
            return settled("nice", str(self.slot.nice), None, error=error.strerror or "")
        # An agent that is nicer itself can only make a nicer slot.
        wanted = self.slot.nice
        return Setting(what="nice", wanted=f"{wanted} or more", found=str(found), ok=found >= wanted)

    def devices_held(self, pid: int) -> Setting:
        """Forbidden device files that the slot's processes hold open: none is right."""
        denied = {node.path for node in self.slot.deny}
        held = sorted({path for member in self.pids(pid) for path in procfs.open_devices(member)} & denied)
        return settled("forbidden devices held", "", ",".join(held))

    def try_devices(self) -> list[str]:
        """Forbidden device files that open from inside this fence now, tried by a process of its own
        there."""
        script = (
            "import json,sys; sys.path.insert(0,sys.argv[1]); import launch;"
            "print(json.dumps([w for p in json.loads(sys.argv[2]) if (w:=launch.opens(p))]))"
        )
        paths = json.dumps([node.path for node in self.slot.deny])
        folder = str(device_fence.LAUNCHER.parent)
        trial = [sys.executable, "-I", "-S", "-c", script, folder, paths]
        spec, report = self._spec.with_suffix(".trial"), self._report.with_suffix(".trial")
        self._write_spec(trial, spec, report)
        try:
            done = subprocess.run(self._launcher(spec), capture_output=True, text=True, timeout=30)
        finally:
            spec.unlink(missing_ok=True)
            report.unlink(missing_ok=True)
        if done.returncode != 0:
            raise FenceError(f"slot {self.slot.name}: {done.stderr.strip()}")
        found: list[str] = json.loads(done.stdout)
        return found

    def freeze(self, pid: int | None = None) -> actuator.Stop:
        """Stop the slot: by cgroup where there is a right, else SIGSTOP to its family. Raises FenceError."""
        return actuator.stop(self.group, pid)

    def thaw(self, pid: int | None = None) -> actuator.Stop:
        """Let the slot run again. Raises FenceError."""
        return actuator.resume(self.group, pid)

    def kill(self, pid: int | None = None, seconds: float = 10.0) -> float:
        """End every process of the slot and see them gone; returns how long it took.

        Raises KillRefused for an MPS client that still runs: let it drain. Raises FenceError where something
        outlives it.
        """
        if not self.slot.kill_allowed and self.pids(pid):
            raise KillRefused()
        if self.group.folders:
            return self.group.kill(seconds)
        return actuator.kill_family(pid, seconds) if pid else 0.0

    def remove(self) -> None:
        """Remove the groups and files. Raises FenceError where processes are left."""
        self.group.remove()
        self._spec.unlink(missing_ok=True)
        self._report.unlink(missing_ok=True)


def disk_of(path: Path) -> str | None:
    """``major:minor`` of the whole disk under a path; None for a network or memory file system."""
    while not path.exists() and path != path.parent:
        path = path.parent
    device = path.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not block.exists():
        return None
    real = Path(os.path.realpath(block))
    if (real / "partition").exists():
        real = real.parent
    return files.read(real / "dev")


__all__ = ["Fence", "Setting", "disk_of"]
