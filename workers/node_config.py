"""The node that ``farm.toml`` describes, or the default one; ``gpu_pinning`` reads the file itself."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path

from farm.errors import FieldFault, InvalidInput
from gpu_pinning import ConfigError, Wishes

MEDIA = ("vram", "pinned", "shm", "spool", "store")
_DEFAULT_FILE = Path("farm.toml")


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What is wished of this node, and from which file; ``None``: from none."""

    wishes: Wishes
    path: Path | None = None

    @property
    def name(self) -> str:
        """The node's name: the wished one, else the host's."""
        return self.wishes.name or re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:63] or "node"

    @property
    def budgets(self) -> dict[str, int]:
        """Bytes per medium, where wished."""
        found = {medium: getattr(self.wishes.budgets, medium) for medium in MEDIA}
        return {medium: size for medium, size in found.items() if size is not None}


def read_node_config(path: Path | None) -> NodeConfig:
    """The node of ``path`` (what FARM_CONFIG names); without it of ``farm.toml`` in the working directory.

    Without either the default node. Raises :class:`InvalidInput` that names the file, each field and fault.
    """
    if path is None:
        if not _DEFAULT_FILE.exists():
            return NodeConfig(Wishes())
        path = _DEFAULT_FILE
    elif not path.exists():
        raise InvalidInput(f"{path} does not exist: FARM_CONFIG names the farm.toml of this node")
    try:
        return NodeConfig(Wishes.load(path), path.resolve())
    except ConfigError as error:
        faults = [FieldFault(pointer(field), f"{value!r}: {fix}") for field, value, fix in error.problems]
        text = "; ".join(f"{fault.pointer}: {fault.message}" for fault in faults)
        raise InvalidInput(f"{path}: {text}", faults) from None


def pointer(field: str) -> str:
    """``slots[0].pools`` or ``slots.a.cores`` as a JSON pointer: ``/slots/0/pools``, ``/slots/a/cores``."""
    return "/" + re.sub(r"[\[\].]+", "/", field).strip("/")
