"""GPUs as NVML tells of them. NVML is loaded at the first use, and its absence is normal.

Every call that a driver, a container or a MIG mode may refuse is read as "not known" (None), never as zero. A
MIG instance has no PCI address of its own; processes are listed on the GPU.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from gpu_pinning.machine import Gpu, GpuProcess, MigInstance, NvLink, PcieLink

T = TypeVar("T")

# nvmlClocksEventReason bits that slow a GPU down against its will.
THROTTLE_REASONS = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


class GpuHealth(BaseModel):
    """How a GPU does: ``present`` False when it fell off the bus; errors since the driver was loaded."""

    model_config = ConfigDict(frozen=True)

    uuid: str
    present: bool
    cause: str = ""
    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    throttled: tuple[str, ...] = ()
    temperature_c: int | None = None


def address_of(bus_id: str) -> str:
    """NVML's ``00000000:3B:00.0`` in the kernel's form ``0000:3b:00.0``."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


class Nvml:
    """An initialised NVML. ``module`` is ``pynvml`` or an object with the same functions."""

    def __init__(self, module: Any) -> None:
        self._m = module

    def _ask(self, call: str, *args: Any) -> Any:
        """A call's answer, or None where NVML refuses it or this library does not know it."""
        try:
            return getattr(self._m, call)(*args)
        except (self._m.NVMLError, AttributeError):
            return None

    def driver(self) -> str | None:
        """The driver's version, ``580.159.03``."""
        return _text(self._ask("nvmlSystemGetDriverVersion"))

    def cuda(self) -> str | None:
        """The newest CUDA that the driver serves, ``13.0``."""
        number = self._ask("nvmlSystemGetCudaDriverVersion_v2")
        return None if number is None else f"{number // 1000}.{number % 1000 // 10}"

    def count(self) -> int:
        """How many GPUs NVML finds here."""
        return int(self._ask("nvmlDeviceGetCount") or 0)

    def gpus(
        self,
        local_cpus: Callable[[str], tuple[int, ...]],
        node: Callable[[str], int | None],
        caps: Callable[[int | None, int, int], tuple[int, ...]],
        list_processes: bool,
    ) -> tuple[Gpu, ...]:
        """Every GPU of the machine, in order of PCI address.

        ``local_cpus`` and ``node`` answer for a PCI address, ``caps`` for (minor, GPU instance, compute
        instance); ``list_processes`` False says that the lists would be incomplete here.
        """
        found = []
        for index in range(self.count()):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            uuid = _text(self._ask("nvmlDeviceGetUUID", handle)) if handle is not None else None
            pci = self._ask("nvmlDeviceGetPciInfo", handle) if handle is not None else None
            if uuid is None or pci is None:
                continue  # fell off the bus: health() tells of it
            address = address_of(_text(pci.busId) or "")
            minor = self._ask("nvmlDeviceGetMinorNumber", handle)
            total, used = self._memory(handle)
            mode = self._ask("nvmlDeviceGetMigMode", handle)
            mig_on = bool(mode and mode[0])
            found.append(
                Gpu(
                    uuid=uuid,
                    name=_text(self._ask("nvmlDeviceGetName", handle)) or "unnamed",
                    pci=address,
                    minor=minor,
                    nvml_index=index,
                    memory_bytes=total or 0,
                    memory_used_bytes=used,
                    node=node(address),
                    local_cpus=local_cpus(address),
                    pcie=PcieLink(
                        generation=self._ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
                        width=self._ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
                        max_generation=self._ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
                        max_width=self._ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
                    ),
                    nvlink=self._nvlink(handle),
                    mig_enabled=mig_on,
                    mig=self._mig(handle, minor, caps) if mig_on else (),
                    processes=self._processes(handle) if list_processes else None,
                )
            )
        return tuple(sorted(found, key=lambda gpu: gpu.pci))

    def _memory(self, handle: Any) -> tuple[int | None, int | None]:
        # Version 2 keeps apart what the driver reserves; version 1 counts it as used.
        info = self._ask("nvmlDeviceGetMemoryInfo", handle, getattr(self._m, "nvmlMemory_v2", None))
        if info is None:
            info = self._ask("nvmlDeviceGetMemoryInfo", handle)
        return (None, None) if info is None else (int(info.total), int(info.used))

    def _nvlink(self, handle: Any) -> tuple[NvLink, ...]:
        links: dict[str, int] = {}
        for link in range(getattr(self._m, "NVML_NVLINK_MAX_LINKS", 18)):
            state = self._ask("nvmlDeviceGetNvLinkState", handle, link)
            if state is None:
                break
            if not state:
                continue
            switch = self._ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            remote = self._ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            if switch == getattr(self._m, "NVML_NVLINK_DEVICE_TYPE_SWITCH", 2):
                links["switch"] = links.get("switch", 0) + 1
            elif remote is not None:
                peer = address_of(_text(remote.busId) or "")
                links[peer] = links.get(peer, 0) + 1
        return tuple(NvLink(peer=peer, links=number) for peer, number in sorted(links.items()))

    def _mig(
        self, handle: Any, minor: int | None, caps: Callable[[int | None, int, int], tuple[int, ...]]
    ) -> tuple[MigInstance, ...]:
        found = []
        for slot in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            instance = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
            uuid = _text(self._ask("nvmlDeviceGetUUID", instance)) if instance is not None else None
            if uuid is None:
                continue
            gi = self._ask("nvmlDeviceGetGpuInstanceId", instance)
            ci = self._ask("nvmlDeviceGetComputeInstanceId", instance)
            name = _text(self._ask("nvmlDeviceGetName", instance)) or ""
            total, _ = self._memory(instance)
            found.append(
                MigInstance(
                    uuid=uuid,
                    # NVML names an instance "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
                    profile=name.rpartition("MIG ")[2] or "unknown",
                    gpu_instance=-1 if gi is None else gi,
                    compute_instance=-1 if ci is None else ci,
                    memory_bytes=total or 0,
                    caps=caps(minor, -1 if gi is None else gi, -1 if ci is None else ci),
                )
            )
        return tuple(found)

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...] | None:
        found: dict[int, GpuProcess] = {}
        for kind, call in (
            ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
            ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
            ("compute", "nvmlDeviceGetComputeRunningProcesses"),
        ):
            rows = self._ask(call, handle)
            if rows is None:
                if kind == "mps":
                    continue  # not on every driver
                return None
            for row in rows:
                name = _text(self._ask("nvmlSystemGetProcessName", row.pid)) or ""
                used = None if row.usedGpuMemory is None else int(row.usedGpuMemory)
                found[row.pid] = GpuProcess(pid=row.pid, kind=kind, name=name, memory_bytes=used)  # type: ignore[arg-type]
        return tuple(found[pid] for pid in sorted(found))

    def processes(self, uuid: str) -> tuple[GpuProcess, ...] | None:
        """Processes on a GPU now, compute, graphics and MPS; None where they cannot be listed."""
        handle = self._handle(uuid)
        return None if handle is None else self._processes(handle)

    def memory_used(self, uuid: str) -> int | None:
        """Bytes of video memory in use on a GPU or MIG instance now."""
        handle = self._handle(uuid)
        return None if handle is None else self._memory(handle)[1]

    def health(self, uuid: str) -> GpuHealth:
        """Whether a GPU is there, its ECC errors and what slows it down."""
        try:
            handle = self._m.nvmlDeviceGetHandleByUUID(uuid)
            self._m.nvmlDeviceGetMemoryInfo(handle)
        except self._m.NVMLError as error:
            return GpuHealth(uuid=uuid, present=False, cause=str(error))
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
        return GpuHealth(
            uuid=uuid,
            present=True,
            ecc_corrected=self._ask("nvmlDeviceGetTotalEccErrors", handle, 0, 0),
            ecc_uncorrected=self._ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
            throttled=tuple(text for bit, text in THROTTLE_REASONS.items() if reasons & bit),
            temperature_c=self._ask("nvmlDeviceGetTemperature", handle, 0),
        )

    def _handle(self, uuid: str) -> Any:
        return self._ask("nvmlDeviceGetHandleByUUID", uuid)


def _text(value: Any) -> str | None:
    """Older bindings answer bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None if value is None else str(value)


@contextlib.contextmanager
def session(module: Any = None) -> Iterator[Nvml | str]:
    """NVML for a while, or the reason (a sentence) why there is none."""
    if module is None:
        try:
            module = importlib.import_module("pynvml")
        except ImportError:
            yield "the package nvidia-ml-py is not installed"
            return
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        yield f"NVML does not start: {error}"
        return
    try:
        yield Nvml(module)
    finally:
        with contextlib.suppress(module.NVMLError):
            module.nvmlShutdown()
