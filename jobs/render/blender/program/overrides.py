"""Overrides of simple properties by name and type; no Python text is ever evaluated."""

from __future__ import annotations

import re
from typing import Any

from .faults import BadInput

COLLECTIONS = {
    "scene": "scenes", "object": "objects", "material": "materials", "world": "worlds", "light": "lights",
    "camera": "cameras", "mesh": "meshes", "collection": "collections", "node_group": "node_groups",
}  # fmt: skip
_STEP = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)|\[(\d+|\"(?:[^\"\\]|\\.)*\")\]|(\.)")
_PATH_SUBTYPES = {"FILE_PATH", "DIR_PATH", "FILE_NAME", "BYTE_STRING"}


def apply(bpy: Any, overrides: list[dict[str, Any]]) -> None:
    """Set each ``{"on": "object", "name": "Cube", "property": "location", "value": [0, 0, 1]}``.

    ``property`` is a path of names and ``["key"]`` or ``[0]`` steps, such as
    ``node_tree.nodes["Principled BSDF"].inputs["Roughness"].default_value``. Properties that hold file
    paths or cannot be written are refused, and so is a value of another type.
    """
    for number, item in enumerate(overrides):
        where = f"overrides[{number}]"
        blocks = getattr(bpy.data, COLLECTIONS[item["on"]])
        block = blocks.get(item["name"])
        if block is None:
            names = ", ".join(repr(each.name) for each in list(blocks)[:8])
            raise BadInput(
                f"{where}: there is no {item['on']} {item['name']!r} in the file; it has {names or 'none'}"
            )
        owner, last = _walk(block, item["property"], where)
        _set(owner, last, item["value"], where)


def _walk(block: Any, path: str, where: str) -> tuple[Any, str]:
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
    try:
        setattr(owner, name, value)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{where}: {error}") from None


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
