"""Proofs of variants that outlive a slot's process: a probe costs seconds, and what it found stays true.

Kept in the farm's folder of this machine, under a name made of all that a proof depends on: Mitsuba's
version, this Python, the variant and the library that it was proven with. Only good proofs are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def once(folder: Path, variant: str, env: Mapping[str, str], prove: Callable[[], str | None]) -> str | None:
    """What ``prove`` says of a variant that works, None where it does not; asked once for each machine."""
    path = folder / f"{_name(variant, env)}.json"
    try:
        kept: str = json.loads(path.read_text())["words"]
        return kept
    except (OSError, ValueError, KeyError, TypeError):
        words = prove()
    if words is not None:
        _keep(path, words)
    return words


def _keep(path: Path, words: str) -> None:
    temporary = path.with_name(f".{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({"words": words}))
        temporary.replace(path)
    except OSError:
        # the next slot finds out for itself
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _name(variant: str, env: Mapping[str, str]) -> str:
    parts: list[object] = [variant, sys.executable, sys.version]
    for package in ("mitsuba", "drjit"):
        try:
            parts.append(version(package))
        except PackageNotFoundError:
            parts.append(None)
    for name, value in sorted(env.items()):
        path = Path(value)
        info = path.stat() if path.is_file() else None
        parts += [name, value, info and (info.st_size, info.st_mtime_ns)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
