"""Identifiers: UUIDv7 (they sort by time of making) with a readable prefix, such as ``job_0192…``."""

from __future__ import annotations

import re

import uuid_utils

PREFIXES = (
    "job", "step", "task", "att", "node", "slot", "buf", "proj", "user", "key", "art", "sess",
)  # fmt: skip
_PATTERN = re.compile(r"^(?P<prefix>[a-z]+)_(?P<hex>[0-9a-f]{32})$")


def new_id(prefix: str) -> str:
    """A fresh identifier; ``prefix`` is one of :data:`PREFIXES`."""
    return f"{prefix}_{uuid_utils.uuid7().hex}"


def is_id(text: str, prefix: str) -> bool:
    """Whether ``text`` is a well-formed identifier of that prefix."""
    match = _PATTERN.match(text)
    return match is not None and match["prefix"] == prefix
