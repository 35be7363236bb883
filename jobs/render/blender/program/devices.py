"""Cycles on the device that was asked for, or a fault: never a silent fall to the CPU."""

from __future__ import annotations

import re
from typing import Any

from .faults import NoDevice

GPU_BACKENDS = {"cuda": "CUDA", "optix": "OPTIX", "hip": "HIP", "oneapi": "ONEAPI", "metal": "METAL"}


def choose(bpy: Any, scene: Any, device: str, pci: list[str]) -> list[str]:
    """Set Cycles to ``device`` (``cpu`` or a key of :data:`GPU_BACKENDS`); returns the device names in use.

    ``pci`` (``0000:1b:00.0``) picks GPUs by their addresses, which Cycles writes into its device ids; all of
    them must be there. Empty: every device of the kind.
    """
    preferences = bpy.context.preferences.addons["cycles"].preferences
    if device == "cpu":
        preferences.compute_device_type = "NONE"
        scene.cycles.device = "CPU"
        return ["CPU"]
    backend = GPU_BACKENDS[device]
    try:
        preferences.compute_device_type = backend
    except TypeError as error:
        raise NoDevice(f"this Blender has no {backend} support: {error}") from None
    preferences.refresh_devices()
    found = [item for item in preferences.devices if item.type == backend]
    if pci:
        wanted = [_pci_key(address) for address in pci]
        found = [item for item in found if any(key in item.id.lower() for key in wanted)]
    for item in preferences.devices:
        item.use = item in found
    if len(found) < max(1, len(pci)):
        where = f" at {', '.join(pci)}" if pci else ""
        raise NoDevice(
            f"device {device!r} was asked for, but Blender finds no {backend} device{where}; "
            "ask for device cpu, or run this on a node that has one"
        )
    scene.cycles.device = "GPU"
    return [item.name for item in found]


def _pci_key(address: str) -> str:
    """The part of a PCI address that Cycles keeps in its ids: ``0000:1b:00`` of ``00000000:1B:00.0``."""
    match = re.fullmatch(
        r"(?:[0-9a-f]{4})?([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-9a-f])?", address.lower()
    )
    return ":".join(match.groups()) if match else address.lower()
