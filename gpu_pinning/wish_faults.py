"""What is wrong with a farm.toml, in its own words: field, value and fix, one for each field."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import ValidationError

Fault = tuple[str, object, str]
Where = list[int | str]
"""The keys and numbers that lead to a field."""


def zero_bytes(value: object, field: str = "") -> Iterator[Fault]:
    """Text with a zero byte, which neither programs nor databases take."""
    if isinstance(value, str) and "\0" in value:
        yield field, value, "holds a zero byte; remove it"
    elif isinstance(value, dict):
        for key, each in value.items():
            inner = f"{field}.{key}".lstrip(".")
            if "\0" in key:
                yield inner, key, "has a zero byte in its name; remove it"
            yield from zero_bytes(each, inner)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from zero_bytes(each, f"{field}[{number}]")


def problems(
    error: ValidationError, data: dict[str, Any], known_fields: Callable[[Where], list[str]]
) -> list[Fault]:
    """One problem for each field: where a value may be of several types, only the answer that fits it
    best."""
    found: dict[str, Fault] = {}
    for item in error.errors():
        path = _real_path(item["loc"], data)
        field = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".") or "farm.toml"
        if item["type"] == "extra_forbidden":
            known = known_fields(path[:-1])
            near = difflib.get_close_matches(str(path[-1]), known, 1)
            fix = (
                f"unknown field; did you mean {near[0]!r}?"
                if near
                else f"unknown field; known: {', '.join(known)}"
            )
        elif item["type"] == "missing":
            fix = "is missing; add it"
        else:
            fix = _plain(item["type"], item.get("ctx", {}), item["msg"], path)
        value = _value_at(data, path)
        if (
            path
            and path[-1] == "cores"
            and isinstance(owner := _at(data, path[:-1]), dict)
            and "cpus" in owner
        ):
            field, value = field.removesuffix("cores") + "cpus", owner["cpus"]
        if field not in found or item["type"] == "value_error":
            found[field] = (field, value, fix)
        elif fix not in found[field][2]:
            # what may be of several types
            found[field] = (field, value, f"{found[field][2]}, or {fix.removeprefix('must be ')}")
    # Of a union, the member that got deepest into the value is the one that was meant.
    return [p for f, p in found.items() if not any(o != f and o.startswith(f + "[") for o in found)]


_TEXTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "greater_than_equal": lambda ctx: f"must be {ctx['ge']} or more",
    "less_than_equal": lambda ctx: f"must be {ctx['le']} or less",
    "greater_than": lambda ctx: f"must be more than {ctx['gt']:g}",
    "finite_number": lambda ctx: "must be a finite number",
    "literal_error": lambda ctx: f"must be {ctx['expected']}",
    "too_short": lambda ctx: "must not be empty",
    "string_type": lambda ctx: "must be text in quotes",
}


def _plain(kind: str, ctx: dict[str, Any], text: str, path: Where) -> str:
    """What a field must be, in words of farm.toml and not of the program that reads it."""
    if kind in _TEXTS:
        return _TEXTS[kind](ctx)
    if kind == "string_pattern_mismatch":
        if path == ["name"]:
            return "must be letters, digits, dots, dashes and underscores, 63 at most, the first no mark"
        return "must be small letters, digits and dashes, 40 at most, the first no dash"
    if kind.startswith("int"):
        return "must be a whole number"
    if kind.startswith("float"):
        return "must be a number"
    if kind.startswith("bool"):
        return "must be true or false, without quotes"
    if kind in ("tuple_type", "list_type"):
        tables = len(path) == 1 and path[0] in ("slots", "neighbours")
        return f"must be tables, each begun by [[{path[0]}]]" if tables else "must be a list in brackets"
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        head = ".".join(str(part) for part in path if isinstance(part, str))
        many = any(isinstance(part, int) for part in path)
        return f"must be a table, begun by [[{head}]]" if many else f"must be a table, begun by [{head}]"
    return text.removeprefix("Value error, ")


def line_of(error: tomllib.TOMLDecodeError, text: str) -> str:
    """The line that a parse error tells of; the last one where it tells of the end."""
    lines = text.splitlines() or [""]
    match = re.search(r"at line (\d+)", str(error))
    return lines[min(int(match[1]), len(lines)) - 1] if match else lines[-1]


def _real_path(loc: tuple[int | str, ...], data: Any) -> Where:
    """``loc`` without the names of union members that pydantic puts into it."""
    path: Where = []
    here = data
    for number, part in enumerate(loc):
        last = number == len(loc) - 1
        if isinstance(here, dict) and (part in here or (last and isinstance(part, str) and "[" not in part)):
            path.append(part)
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int):
            path.append(part)
            here = here[part] if part < len(here) else None
    return path


def _at(data: Any, path: Where) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _value_at(data: Any, path: Where) -> object:
    value = _at(data, path)
    return value if not isinstance(value, dict) else value.get("name", "…")
