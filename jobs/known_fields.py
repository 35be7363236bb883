"""Which fields a spec has at a place, from its JSON schema: for words about a field that it has not."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_SHOWN = 8


def instead_of(schema: Mapping[str, Any], data: Any, path: Sequence[str]) -> str:
    """What may be meant by the unknown field at ``path`` (JSON pointer segments) of ``data``: the nearest
    names, else the names there are; where they are many, ``GET /v1/kinds`` is named alone.
    """
    *folder, name = path
    places = list(_branches(schema, schema, data))
    for part in folder:
        data = _inside(data, part)
        places = [
            branch
            for place in places
            for below in _below(place, part)
            for branch in _branches(schema, below, data)
        ]
    names = list(dict.fromkeys(field for place in places for field in place.get("properties", ())))
    likeness = {field: difflib.SequenceMatcher(None, name, field).ratio() for field in names}
    least = max(0.6, max(likeness.values(), default=0.0) - 0.1)
    near = sorted((field for field in names if likeness[field] >= least), key=lambda field: -likeness[field])[
        :3
    ]
    if near:
        return f"did you mean {' or '.join(map(repr, near))}? `GET /v1/kinds` lists all fields"
    if names and len(names) <= _SHOWN:
        return f"here it has {', '.join(names)}; `GET /v1/kinds` lists all fields"
    return "`GET /v1/kinds` lists all fields"


def _inside(data: Any, part: str) -> Any:
    if isinstance(data, Mapping):
        return data.get(part)
    if isinstance(data, list | tuple) and part.isdigit() and int(part) < len(data):
        return data[int(part)]
    return None


def _below(place: Mapping[str, Any], part: str) -> Iterator[Any]:
    if part in place.get("properties", ()):
        yield place["properties"][part]
    if part.isdigit():
        yield place.get("items")
        yield from place.get("prefixItems", ())[int(part) : int(part) + 1]
    yield place.get("additionalProperties")


def _branches(schema: Mapping[str, Any], place: Any, data: Any) -> Iterator[Mapping[str, Any]]:
    """The objects that ``place`` may stand for, without those whose tag is another than in ``data``."""
    if not isinstance(place, Mapping):
        return
    if "$ref" in place:
        target: Any = schema
        for part in place["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        yield from _branches(schema, target, data)
    for key in ("anyOf", "oneOf", "allOf"):
        for branch in place.get(key, ()):
            yield from _branches(schema, branch, data)
    if ("properties" in place or "items" in place or "additionalProperties" in place) and not _other(
        place, data
    ):
        yield place


def _other(place: Mapping[str, Any], data: Any) -> bool:
    if not isinstance(data, Mapping):
        return False
    return any(
        "const" in field and field["const"] != data.get(name, field.get("default"))
        for name, field in place.get("properties", {}).items()
        if isinstance(field, Mapping)
    )
