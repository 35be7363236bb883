"""Settings from the environment (``FARM_*``); a node's own shape stands in ``farm.toml``."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from farm.errors import FieldFault, InvalidInput


def _data_home() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "stillframe"


class Settings(BaseSettings):
    """One farm's settings. Times in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="FARM_", extra="ignore")

    data: Path = Field(default_factory=_data_home, description="Folder for database, store, logs and spool.")
    database_url: str = Field(default="", description="SQLAlchemy URL; empty: SQLite in the data folder.")
    broker_url: str = Field(default="", description="Redis URL; empty: an embedded broker of `farm up`.")
    store_url: str = Field(default="", description="Where contents lie; empty: `store` in the data folder.")
    config: Path | None = Field(default=None, description="farm.toml of this node.")
    listen: str = Field(default="127.0.0.1:8630", description="Address that the API binds to.")
    allowed_hosts: str = Field(
        default="", description="Further Host names that the API answers to, by comma."
    )
    behind_tls: bool = Field(
        default=False,
        description="A proxy that speaks TLS stands before the API: session cookies travel over it alone.",
    )
    keyring: Path | None = Field(
        default=None,
        description="File with the secret that keys are checked by, the same for every API of a farm; empty: "
        "`keyring.secret` in the data folder.",
    )
    max_streams: int = Field(
        default=64, ge=1, description="Most event and log streams that one key may have open at an API."
    )
    sandbox: Literal["auto", "bubblewrap", "plain"] = Field(
        default="auto",
        description="How scene children are confined: `bubblewrap` or nothing runs, `plain` without it, "
        "`auto` with it where it works.",
    )
    log_level: str = Field(
        default="info", description="How much the processes say: debug, info, warning, error."
    )

    lease_s: float = Field(
        default=30.0,
        description="How long a slot may go without a renewed lease before its task is given to another.",
    )
    lease_extend_s: float = Field(default=5.0, description="How often a node renews the leases of its slots.")
    lease_lock_wait_s: float = Field(
        default=4.0, description="Longest wait for a database lock when renewing; then it tries again."
    )
    beat_s: float = Field(default=1.0, description="How often a slot beats.")
    beat_stale_s: float = Field(
        default=10.0, description="A slot whose beat has not moved for so long gets no renewed lease."
    )
    claim_timeout_s: float = Field(
        default=10.0, description="A ticket that is not claimed so long after dispatch is taken back."
    )
    database_away_park_s: float = Field(
        default=25.0, description="A node that cannot reach the database for so long parks its tasks."
    )
    database_away_kill_s: float = Field(
        default=5.0, description="How long the parking may take then; after it the slots are ended."
    )
    park_grace_s: float = Field(
        default=20.0, description="How long a task may take to park before its slot is ended."
    )
    cancel_grace_s: float = Field(
        default=10.0, description="How long a task may take to stop after a cancel before its slot is ended."
    )
    agent_poll_s: float = Field(
        default=1.0, description="How often a node looks for wishes in the database, wakes apart."
    )
    audit_every_s: float = Field(
        default=10.0, description="How often a node looks whether its slots are where the plan put them."
    )
    guard_top: Literal["pause", "park", "kill"] = Field(
        default="park",
        description="The last rung that the guard climbs by itself: pause, park, or kill (ends, free of "
        "charge, what has not parked).",
    )
    preemption_file: Path | None = Field(
        default=None,
        description="When this file appears, the machine will be taken away: work parks, the node drains.",
    )
    scheduler_tick_s: float = Field(
        default=1.0, description="How often the scheduler looks for work, wakes apart."
    )
    leader_lease_s: float = Field(
        default=5.0, description="How long a scheduler that has gone silent stays the leader."
    )
    retry_backoff_s: float = Field(
        default=1.0, description="Wait before the first retry of a failed task; doubles with each."
    )
    retry_backoff_max_s: float = Field(default=60.0, description="Longest wait before a retry.")
    node_lost_s: float = Field(default=30.0, description="A node that has not been seen for so long is down.")
    free_node_losses: int = Field(
        default=3, description="Lost nodes that a task survives before they spend its retries."
    )
    bundle_max: int = Field(default=16, description="Most tasks in one ticket.")
    bundle_s: float = Field(default=1.0, description="How long the tasks of one ticket may last together.")
    look_ahead: int = Field(default=32, description="How far down the list a task for a warm slot may be.")
    reserve_floor: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="Part of each pool's slots that is kept for projects that reserve; preemptible nodes "
        "do not count.",
    )
    lend_min_run_s: float = Field(
        default=10.0, description="How long a task of a lent slot runs before the slot is asked back."
    )
    age_boost_per_hour: float = Field(
        default=10.0, description="Points of priority that a waiting job gains each hour."
    )

    max_tasks: int = Field(default=250_000, description="Most tasks of one job.")
    max_frames: int = Field(default=1_000_000, description="Most frames of one job.")
    max_body: int = Field(default=16 * 2**20, description="Largest JSON body of a request, in bytes.")
    max_upload: int = Field(default=1 * 2**40, description="Largest asset, in bytes.")
    free_space_floor: int = Field(
        default=256 * 2**20,
        description="A node with less free space than this on a disk that it writes to begins no work.",
    )
    spool_budget: int = Field(default=8 * 2**30, description="Bytes of scratch that a node may reserve.")
    shm_budget: int = Field(default=1 * 2**30, description="Bytes of shared memory that a node may reserve.")
    store_budget: int = Field(
        default=1 * 2**40, description="Bytes of checkpoints that a node may keep in the store."
    )
    pinned_budget: int = Field(
        default=4 * 2**30, description="Bytes of page-locked memory that a node may reserve."
    )
    machine_claims: bool = Field(
        default=True,
        description="A node claims its cores and GPUs on its machine, and does not start where the agent of "
        "another node gives out the same. False: several nodes of one machine may share them, as in tests; "
        "none of them is isolated then.",
    )
    gc_min_age_s: float = Field(
        default=86_400.0,
        description="Contents that nothing refers to are kept so long after they were last touched.",
    )
    idempotency_keep_s: float = Field(
        default=86_400.0, description="How long the answer to an Idempotency-Key is kept."
    )
    event_keep_s: float = Field(default=30 * 86_400.0, description="How long events are kept.")

    @property
    def resolved_database_url(self) -> str:
        """The database URL with its default filled in."""
        return self.database_url or f"sqlite:///{self.data / 'farm.sqlite3'}"

    @property
    def resolved_store(self) -> str:
        """The store's URL or folder with its default filled in."""
        return self.store_url or str(self.data / "store")

    @property
    def logs(self) -> Path:
        """Folder of attempt logs: in a store that is a folder of its own, so that all of a fleet reach it."""
        folder = self.store_url.removeprefix("file://")
        return Path(folder) / "logs" if folder and "://" not in folder else self.data / "logs"

    @property
    def previews(self) -> Path:
        """Folder of pictures of work in progress, one a task: beside the logs, where a fleet sees it."""
        return self.logs.with_name("previews")

    @property
    def stillness(self) -> Path:
        """Folder in which a run of the stillness bench shows itself live."""
        return self.data / "stillness"

    @property
    def run_dir(self) -> Path:
        """Folder for sockets, control files and pids of this machine."""
        return self.data / "run"


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The process's settings, read once. Raises :class:`farm.errors.InvalidInput` for one that is no good."""
    try:
        return Settings()
    except ValidationError as error:
        faults = [(f"FARM_{'_'.join(map(str, item['loc'])).upper()}", item) for item in error.errors()]
        text = "; ".join(f"{name} is {item['input']!r}: {item['msg']}" for name, item in faults)
        raise InvalidInput(text, [FieldFault(f"/{name}", item["msg"]) for name, item in faults]) from None
