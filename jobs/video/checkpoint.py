"""A checkpoint of a denoise loop: one safetensors file with everything that the next step reads.

What is in it: the last output of each scheduler and its whole state, the random generators, the forms of the
models' outputs, the step cache, a hash of what the models were conditioned on, and the environment in which
it was made. Where that differs, the result may differ in its last bits, and :func:`differences` says in what.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from farm.errors import TaskFailed
from jobs.pacing import own_pace
from jobs.video.packing import pack, unpack

torch: Any = importlib.import_module("torch")

VERSION: Final = 1
_BUILDS: Final = ("torch", "diffusers", "transformers", "triton", "torchao", "numpy")


@dataclass(slots=True)
class Snapshot:
    """The state after ``step`` steps. Tensors are references into a running loop until it is detached."""

    step: int
    """Steps done by the first scheduler."""
    calls: list[int]
    """Calls of ``step`` per scheduler instance, in order of their first call."""
    outputs: list[Any]
    states: list[dict[str, Any]]
    rng: dict[str, Any]
    forms: dict[str, list[Any]]
    """Model name to the forms of its outputs within one step, by order of the calls."""
    cache: dict[str, Any]
    conditioning: str
    environment: dict[str, Any] = field(default_factory=dict)

    def detach(self) -> Detached:
        """Copy it off the device. The copies are queued behind what made the tensors, not waited for."""
        skeleton, tensors = pack(
            {
                "outputs": self.outputs,
                "states": self.states,
                "rng": self.rng,
                "cache": self.cache,
            }
        )
        on_device = any(tensor.is_cuda for tensor in tensors.values())
        copies = {}
        for name, tensor in tensors.items():
            if tensor.is_cuda:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                own_pace().copy(copy, tensor, page_locked=True)
                copies[name] = copy
            else:
                copies[name] = tensor.contiguous().clone()
        ready = torch.cuda.Event(blocking=True) if on_device else None
        if ready is not None:
            ready.record()
        head = {
            "version": VERSION,
            "step": self.step,
            "calls": self.calls,
            "forms": self.forms,
            "conditioning": self.conditioning,
            "environment": self.environment,
            "skeleton": skeleton,
        }
        return Detached(head, copies, ready)


@dataclass(slots=True)
class Detached:
    """A snapshot in host memory, which the running loop no longer changes."""

    head: dict[str, Any]
    tensors: dict[str, Any]
    ready: Any = None

    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    def write(self, path: Path) -> int:
        """Write and sync the file; its size. Waits for the copies from the device."""
        if self.ready is not None:
            self.ready.synchronize()
        save = importlib.import_module("safetensors.torch").save_file
        save(self.tensors, str(path), metadata={"stillframe": json.dumps(self.head)})
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return path.stat().st_size


def read(path: Path, device: Any = "cpu") -> Snapshot:
    """Read a checkpoint; raises :class:`farm.errors.TaskFailed` where it is not one of ours."""
    open_file = importlib.import_module("safetensors").safe_open
    try:
        with open_file(str(path), framework="pt") as file:
            head = json.loads((file.metadata() or {})["stillframe"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        if head["version"] != VERSION:
            raise ValueError(f"it has version {head['version']}, this farm reads {VERSION}")
        state = unpack(head["skeleton"], tensors, device)
    except Exception as error:  # the library raises its own and bare errors for damaged files
        raise TaskFailed(f"the checkpoint cannot be read: {error}") from error
    return Snapshot(
        step=head["step"],
        calls=head["calls"],
        outputs=state["outputs"],
        states=state["states"],
        rng=state["rng"],
        forms=head["forms"],
        cache=state["cache"],
        conditioning=head["conditioning"],
        environment=head["environment"],
    )


def environment(device: Any, **choices: Any) -> dict[str, Any]:
    """What the bits of a result depend on besides its inputs: device, builds, threads, and ``choices``.

    ``choices`` are what the run was set to: dtype, batch, attention backend, compiled kernels, quantisation.
    """
    cuda = torch.device(device).type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else _processor(),
        "builds": {name: version for name in _BUILDS if (version := _version(name))},
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "threads": torch.get_num_threads(),
        **choices,
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In what two environments differ, a line each; empty where a resumed run is exact."""
    lines = []
    for key in dict.fromkeys((*then, *now)):
        before, after = then.get(key), now.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += [
                f"{key}.{name}: {before.get(name)!r} then, {after.get(name)!r} now"
                for name in dict.fromkeys((*before, *after))
                if before.get(name) != after.get(name)
            ]
        elif before != after:
            lines.append(f"{key}: {before!r} then, {after!r} now")
    return lines


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The CPU's model: other vector units give other bits."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine()
