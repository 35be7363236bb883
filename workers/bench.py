"""What every attempt of a slot works with: database, store, folders, control file. One object per slot."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from farm.db.connect import Database
from farm.settings import Settings
from farm.stores import Store
from workers.control import SlotControl
from workers.disks import Disks
from workers.spool import Spool

IDENTITY_VARIABLE = "STILLFRAME_IDENTITY"


@dataclass(frozen=True, slots=True)
class SlotIdentity:
    """Who a slot is; the agent says so in the environment."""

    slot_id: str
    slot_name: str
    node_id: str
    node_name: str
    incarnation: str
    control: str
    spool: str
    scratch: str
    """Folder of this slot for attempts' scratch folders and assets."""
    device: dict[str, Any] = field(default_factory=dict)

    def to_environment(self) -> dict[str, str]:
        """As an environment variable."""
        return {IDENTITY_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> SlotIdentity:
        """As the agent gave it. Raises :class:`KeyError` in a process that no agent started."""
        return cls(**json.loads(os.environ[IDENTITY_VARIABLE]))


@dataclass(slots=True)
class Bench:
    """The slot's tools. ``stopping`` says that no further task is to be begun."""

    identity: SlotIdentity
    settings: Settings
    db: Database
    store: Store
    control: SlotControl
    spool: Spool
    wake: Callable[[str], object]
    stopping: Callable[[], bool] = lambda: False
    why_gpu_busy: Callable[[], str | None] = lambda: None
    """Why the slot's GPU is somebody else's at this moment; asked before each claim."""
    disks: Disks = field(default_factory=Disks)
    """The disks that the slot writes to; looked at before each claim and after each frame."""

    @property
    def scratch(self) -> Path:
        """Folder of this slot for short-lived files."""
        return Path(self.identity.scratch)
