"""Overrides of simple properties by name and type; no Python text is ever evaluated."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any

from .faults import BadInput

COLLECTIONS = {
    "scene": "scenes", "object": "objects", "material": "materials", "world": "worlds", "light": "lights",
    "camera": "cameras", "mesh": "meshes", "collection": "collections", "node_group": "node_groups",
}  # fmt: skip
_STEP = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)|\[(\d+|\"(?:[^\"\\]|\\.)*\")\]|(\.)")
_CLOSED = (
    "AnimData", "FCurve", "Driver", "DriverVariable", "DriverTarget", "Action", "NlaTrack", "NlaStrip",
    "Text", "TextLine", "ShaderNodeScript", "FreestyleSettings", "FreestyleModuleSettings", "KeyingSet",
    "Library", "WindowManager", "Sequence", "Strip",
)  # fmt: skip
"""Where text may be a program, or moves what the frames show: nothing below one of these is set."""
_PATH_SUBTYPES = {"FILE_PATH", "DIR_PATH", "FILE_NAME", "BYTE_STRING"}


@dataclass
class Applied:
    """A property that was set: ``owner.name`` holds ``value``; ``where`` names it in a message."""

    owner: Any
    name: str
    value: Any
    where: str

    def check(self, why: str) -> None:
        """Raise :class:`BadInput` if the property no longer reads back as the value, because of ``why``."""
        held = _read(self.owner, self.name)
        if not _same(held, self.value):
            raise BadInput(
                f"{self.where}: property {self.name!r} was set to {self.value!r} and reads {held!r}: {why}"
            )


def apply(bpy: Any, overrides: list[dict[str, Any]]) -> list[Applied]:
    """Set each ``{"on": "object", "name": "Cube", "property": "location", "value": [0, 0, 1]}``.

    ``property`` is a path of names and ``["key"]`` or ``[0]`` steps, such as
    ``node_tree.nodes["Principled BSDF"].inputs["Roughness"].default_value``. Properties that hold file
    paths or cannot be written are refused, and so are a value of another type or past the property's limits,
    and everything below animation, drivers, texts and script nodes.
    """
    closed = tuple(getattr(bpy.types, name) for name in _CLOSED if hasattr(bpy.types, name))
    applied = []
    for number, item in enumerate(overrides):
        where = f"overrides[{number}]"
        blocks = getattr(bpy.data, COLLECTIONS[item["on"]])
        block = blocks.get(item["name"])
        if block is None:
            names = ", ".join(repr(each.name) for each in list(blocks)[:8])
            raise BadInput(
                f"{where}: there is no {item['on']} {item['name']!r} in the file; it has {names or 'none'}"
            )
        owner, last = _walk(block, item["property"], closed, where)
        _set(owner, last, item["value"], where)
        applied.append(Applied(owner, last, item["value"], where))
    return applied


def _walk(block: Any, path: str, closed: tuple[Any, ...], where: str) -> tuple[Any, str]:
    steps: list[Any] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise BadInput(f"{where}: property {path!r} cannot be read at position {position}")
        if match[1]:
            steps.append(match[1])
        elif match[2]:
            steps.append(int(match[2]) if match[2].isdigit() else (match[2][1:-1],))
        position = match.end()
    if not steps or not isinstance(steps[-1], str):
        raise BadInput(f"{where}: property {path!r} must end in the name of a property")
    owner = block
    for step in steps[:-1]:
        if isinstance(step, str):
            if step not in owner.bl_rna.properties:
                raise BadInput(f"{where}: {type(owner).__name__} has no property {step!r}")
            owner = getattr(owner, step)
        else:
            key = step if isinstance(step, int) else step[0]
            try:
                owner = owner[key]
            except (KeyError, IndexError, TypeError):
                raise BadInput(f"{where}: there is no {key!r} in {path!r}") from None
        if owner is None:
            raise BadInput(f"{where}: {path!r} leads to nothing")
        if isinstance(owner, closed):
            kind = type(owner).__name__
            raise BadInput(f"{where}: {path!r} leads into a {kind}, which cannot be overridden")
    return owner, steps[-1]


def _set(owner: Any, name: str, value: Any, where: str) -> None:
    properties = owner.bl_rna.properties
    if name not in properties:
        raise BadInput(f"{where}: {type(owner).__name__} has no property {name!r}")
    prop = properties[name]
    if prop.is_readonly:
        raise BadInput(f"{where}: property {name!r} cannot be written")
    if prop.subtype in _PATH_SUBTYPES or prop.type in {"POINTER", "COLLECTION"}:
        raise BadInput(
            f"{where}: property {name!r} is not a simple one; files and links cannot be overridden"
        )
    length = getattr(prop, "array_length", 0)
    if not _fits(prop.type, length, value):
        kind = prop.type.lower() + (f" of {length}" if length else "")
        raise BadInput(f"{where}: property {name!r} is a {kind}, but the value is {value!r}")
    _within(prop, name, value, where)
    try:
        setattr(owner, name, value)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{where}: {error}") from None
    held = _read(owner, name)
    if not _same(held, value):
        raise BadInput(f"{where}: property {name!r} was set to {value!r}, but Blender keeps {held!r}")


def _within(prop: Any, name: str, value: Any, where: str) -> None:
    """Blender moves a number past a limit, and cuts a text, in silence: refuse it with the limit."""
    if prop.type in {"INT", "FLOAT"}:
        for each in value if isinstance(value, list) else [value]:
            if not prop.hard_min <= each <= prop.hard_max:
                raise BadInput(
                    f"{where}: property {name!r} goes from {prop.hard_min:g} to {prop.hard_max:g}, "
                    f"but the value is {each!r}"
                )
    length = getattr(prop, "length_max", 0)
    if prop.type == "STRING" and length and len(value.encode()) >= length:
        raise BadInput(f"{where}: property {name!r} holds {length - 1} bytes, but the value is longer")


def _read(owner: Any, name: str) -> Any:
    held = getattr(owner, name)
    return held if isinstance(held, bool | int | float | str) else list(held)


def _same(held: Any, value: Any) -> bool:
    if isinstance(value, list):
        return len(held) == len(value) and all(map(_same, held, value))
    if isinstance(held, float):
        # Blender keeps single precision, and turns degrees of its own
        single = struct.unpack("f", struct.pack("f", value))[0]
        return bool(abs(held - single) <= 1e-6 * max(1.0, abs(single)))
    return bool(held == value)


def _fits(kind: str, length: int, value: Any) -> bool:
    if length:
        return (
            isinstance(value, list) and len(value) == length and all(_fits(kind, 0, each) for each in value)
        )
    if kind == "BOOLEAN":
        return isinstance(value, bool)
    if kind == "INT":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "FLOAT":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return kind in {"STRING", "ENUM"} and isinstance(value, str)
