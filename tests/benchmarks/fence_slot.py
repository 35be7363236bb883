"""The slot process of ``gpu_fence.py``: answers each line on stdin with where it really runs.

The standard library, ``launch.py`` and, for GPU work, torch: nothing else, so that it is ready at once. A
request is ``{"do": "ping" | "task" | "hold"}``; heavy imports come with the first GPU task.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
import uuid
import zlib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpu_pinning"))
import launch  # the file alone: importing the package would cost time that counts

_libc = ctypes.CDLL(None, use_errno=True)


def devices_that_open() -> list[str]:
    """NVIDIA device files that this process can open."""
    dev = Path("/dev")
    paths = sorted(str(path) for path in (*dev.glob("nvidia*"), *dev.glob("nvidia-caps/*")))
    return [path for path in paths if _opens(path)]


def _opens(path: str) -> bool:
    return Path(path).is_char_device() and bool(launch.opens(path))


def cuda_devices() -> list[dict[str, str]] | str:
    """UUID and PCI address of what the CUDA driver shows, or why it shows nothing."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    if code := cuda.cuInit(0):
        return f"cuInit: {code}"
    count = ctypes.c_int()
    if code := cuda.cuDeviceGetCount(ctypes.byref(count)):
        return f"cuDeviceGetCount: {code}"
    found = []
    for index in range(count.value):
        raw = (ctypes.c_ubyte * 16)()
        text = ctypes.create_string_buffer(32)
        cuda.cuDeviceGetUuid(ctypes.byref(raw), index)
        cuda.cuDeviceGetPCIBusId(text, 32, index)
        found.append({"uuid": f"GPU-{uuid.UUID(bytes=bytes(raw))}", "pci": text.value.decode().lower()})
    return found


def nvml_count() -> int | str:
    """How many GPUs NVML finds from here, or its refusal."""
    try:
        import pynvml
    except ImportError:
        return "no nvidia-ml-py"
    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
        return count
    except pynvml.NVMLError as error:
        return str(error)


def memory_node() -> int | None:
    """The node of a page that was touched just now (get_mempolicy(2) with MPOL_F_NODE and MPOL_F_ADDR)."""
    page = ctypes.create_string_buffer(1 << 16)
    ctypes.memset(page, 1, len(page))
    node = ctypes.c_int(-1)
    try:
        address = ctypes.c_void_p(ctypes.addressof(page))
        launch._syscall(
            "get_mempolicy", ctypes.byref(node), None, ctypes.c_ulong(0), address, ctypes.c_ulong(3)
        )
    except OSError:
        return None
    return node.value


def work(gpu: bool, hold_bytes: int) -> list[int]:
    """A little work on every core of the fence, and on the GPU; returns the CPUs that it ran on."""
    seen: set[int] = set()

    def press() -> None:
        data = os.urandom(1 << 18)
        for _ in range(4):
            zlib.compress(data, 6)
            seen.add(_libc.sched_getcpu())

    threads = [threading.Thread(target=press) for _ in range(len(os.sched_getaffinity(0)))]
    for thread in threads:
        thread.start()
    if gpu:
        import torch

        a = torch.randn(2048, 2048, device="cuda")
        (a @ a).sum().item()
        if hold_bytes:
            globals()["_held"] = torch.zeros(hold_bytes, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
    for thread in threads:
        thread.join()
    return sorted(seen)


def answer(request: dict[str, Any], gpu: bool) -> dict[str, Any]:
    """Where this process is and what it can reach."""
    if request["do"] == "ping":
        return {"pid": os.getpid()}
    ran = work(gpu, int(request.get("bytes", 0)))
    affinity = {
        int(tid.name): sorted(os.sched_getaffinity(int(tid.name)))
        for tid in Path("/proc/self/task").iterdir()
    }
    return {
        "pid": os.getpid(),
        "task": request.get("task"),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "cuda": cuda_devices(),
        "nvml": nvml_count(),
        "opens": devices_that_open(),
        "ran_on": ran,
        "threads": len(affinity),
        "cpus": sorted({cpu for cpus in affinity.values() for cpu in cpus}),
        "node": memory_node(),
    }


def main() -> None:
    """Answer until stdin ends."""
    gpu = bool(os.environ.get("CUDA_VISIBLE_DEVICES"))
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(request, gpu)), flush=True)
        if request["do"] == "hold":
            time.sleep(600)  # in the middle of a task, until it is killed


if __name__ == "__main__":
    main()
