"""``farm.toml``: what one node is: its name, its slots and their pools, its byte budgets.

Without the file a node takes one CPU slot per two cores, for ``render, encode, nerf, video``::

    name = "attic"

    [[slots]]
    name = "cpu-0"
    pools = ["render", "encode"]
    cpus = "0-3"
    nice = 5

    [budgets]
    spool = 8_589_934_592
"""

from __future__ import annotations

import os
import re
import socket
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from farm.errors import FieldFault, InvalidInput

DEFAULT_POOLS = ("render", "encode", "nerf", "video")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
Medium = Literal["vram", "pinned", "shm", "spool", "store"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SlotConfig(_Strict):
    """One slot of the node."""

    name: str
    pools: list[str] = Field(min_length=1, description="Pools that it serves, the preferred one first.")
    device: dict[str, Any] = Field(default_factory=lambda: {"kind": "cpu"})
    cpus: str | None = Field(
        default=None, description="Cores it may use, such as 0-3,8; none: all of the node's."
    )
    threads: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Threads for numeric libraries."
    )
    nice: int = Field(default=5, ge=0, le=19)
    environment: dict[str, str] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _named(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name: letters, digits, dot, dash and underscore, at most 63")
        return name

    @field_validator("pools")
    @classmethod
    def _different(cls, pools: list[str]) -> list[str]:
        if len(set(pools)) != len(pools):
            raise ValueError("a pool stands there twice")
        return pools

    @field_validator("cpus")
    @classmethod
    def _readable(cls, cpus: str | None) -> str | None:
        if cpus is not None:
            parse_cpus(cpus)
        return cpus

    def cpu_set(self) -> frozenset[int]:
        """The cores; empty: not restricted."""
        return parse_cpus(self.cpus) if self.cpus is not None else frozenset()


class NodeConfig(_Strict):
    """One node. ``neighbours`` is read by ``gpu_pinning``."""

    name: str = Field(default_factory=lambda: socket.gethostname()[:63] or "node")
    slots: list[SlotConfig] = Field(default_factory=list)
    budgets: dict[Medium, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    neighbours: list[dict[str, Any]] = Field(default_factory=list)

    @field_validator("name")
    @classmethod
    def _named(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name: letters, digits, dot, dash and underscore, at most 63")
        return name

    @model_validator(mode="after")
    def _distinct(self) -> NodeConfig:
        names = [slot.name for slot in self.slots]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two slots are called {twice[0]!r}")
        present = os.sched_getaffinity(0)
        for slot in self.slots:
            absent = slot.cpu_set() - present
            if absent:
                raise ValueError(
                    f"slot {slot.name!r} names cores {sorted(absent)}, which this process may not use; "
                    f"it may use {sorted(present)}"
                )
        return self


def read_node_config(path: Path | None) -> NodeConfig:
    """The node that ``farm.toml`` describes, or the default node for ``None``.

    Raises :class:`InvalidInput` that names the file, the field and the fault.
    """
    if path is None:
        return default_node()
    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise InvalidInput(f"{path} does not exist: FARM_CONFIG names the farm.toml of this node") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read as TOML: {error}") from error
    try:
        config = NodeConfig.model_validate(data)
    except ValidationError as error:
        faults = [
            FieldFault("/" + "/".join(map(str, item["loc"])), item["msg"].removeprefix("Value error, "))
            for item in error.errors()
        ]
        text = "; ".join(f"{fault.pointer}: {fault.message}" for fault in faults)
        raise InvalidInput(f"{path}: {text}", faults) from None
    if not config.slots:
        return config.model_copy(update={"slots": default_node().slots})
    return config


def default_node() -> NodeConfig:
    """One CPU slot per two cores, each on cores of its own."""
    cores = sorted(os.sched_getaffinity(0))
    pairs = [cores[first : first + 2] for first in range(0, len(cores) - len(cores) % 2, 2)] or [cores]
    if len(pairs) * 2 < len(cores):
        pairs[-1] = [*pairs[-1], cores[-1]]
    slots = [
        SlotConfig(
            name=f"cpu-{number}",
            pools=list(DEFAULT_POOLS),
            cpus=",".join(map(str, pair)),
            threads=len(pair),
        )
        for number, pair in enumerate(pairs)
    ]
    return NodeConfig(slots=slots)


def parse_cpus(text: str) -> frozenset[int]:
    """Cores of a kernel-style list such as ``0-3,8``. Raises :class:`ValueError`."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise ValueError(f"{text!r} is not a list of cores: write it as 0-3,8")
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)
