"""The kernel's list format for CPUs and memory nodes: ``0-3,8,10-11``.

Described in the kernel's ``Documentation/admin-guide/cputopology.rst`` and ``cpuset(7)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer


def parse(text: str) -> tuple[int, ...]:
    """The ids in a list such as ``0-3,8`` (also with a stride, ``0-31:2/4``), sorted, each once.

    An empty list gives ``()``. Raises ValueError, naming the part, where it is not such a list.
    """
    ids: set[int] = set()
    for part in text.strip().split(","):
        part = part.strip()
        if not part:
            continue
        span, _, stride = part.partition(":")
        first_text, dash, last_text = span.partition("-")
        try:
            first = int(first_text)
            last = int(last_text) if dash else first
            used, group = (int(x) for x in stride.split("/")) if stride else (1, 1)
        except ValueError:
            raise ValueError(f"{part!r} is not a CPU or a span of CPUs; write for example '0-3,8'") from None
        if first < 0 or last < first or last > 65535 or not 0 < used <= group:
            raise ValueError(f"{part!r} is not an ascending span of CPUs; write for example '0-3,8'")
        ids.update(cpu for cpu in range(first, last + 1) if (cpu - first) % group < used)
    return tuple(sorted(ids))


def show(ids: Iterable[int]) -> str:
    """The shortest list for these ids: ``(0, 1, 2, 3, 8)`` gives ``0-3,8``."""
    parts: list[str] = []
    span: list[int] = []
    for cpu in [*sorted(set(ids)), None]:
        if cpu is not None and (not span or cpu == span[-1] + 1):
            span.append(cpu)
            continue
        if span:
            parts.append(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}")
        span = [] if cpu is None else [cpu]
    return ",".join(parts)


def _accept(value: object) -> object:
    if isinstance(value, str):
        return parse(value)
    if isinstance(value, (set, frozenset, list, tuple)):
        return tuple(sorted(set(value)))
    return value


IdList = Annotated[
    tuple[int, ...],
    BeforeValidator(_accept, json_schema_input_type=str),
    PlainSerializer(show, return_type=str),
]
"""A sorted tuple of CPU or node ids, written in JSON as the kernel writes it."""
