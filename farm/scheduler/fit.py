"""Whether a slot can run a step: what the step requires against what the slot's device offers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def fits(requires: Mapping[str, Any], device: Mapping[str, Any]) -> bool:
    """Whether a slot with this ``device`` fulfils every wish in ``requires``.

    ``device`` names the slot's kind of device (``cpu`` where a slot says nothing). ``min_x`` asks for at
    least that much of ``x`` (``min_vram`` in bytes). Any other wish asks for that very value, or for a
    value among those that the slot lists. What a slot does not say, it does not offer.
    """
    return all(_offers(device, name, wanted) for name, wanted in requires.items() if wanted is not None)


def _offers(device: Mapping[str, Any], name: str, wanted: Any) -> bool:
    if name == "device":
        return bool(device.get("device", device.get("kind", "cpu")) == wanted)
    if name.startswith("min_"):
        offered = device.get(name.removeprefix("min_"))
        return isinstance(offered, int | float) and not isinstance(offered, bool) and offered >= wanted
    offered = device.get(name)
    if isinstance(offered, list | tuple):
        return wanted in offered
    return bool(offered == wanted)
