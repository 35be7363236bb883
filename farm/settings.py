"""Settings from the environment (``FARM_*``); a node's own shape stands in ``farm.toml``."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


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
    log_level: str = "info"

    lease_s: float = 30.0
    lease_extend_s: float = 5.0
    lease_lock_wait_s: float = 4.0
    beat_s: float = 1.0
    beat_stale_s: float = 10.0
    claim_timeout_s: float = 10.0
    database_away_park_s: float = 25.0
    database_away_kill_s: float = 5.0
    park_grace_s: float = 20.0
    cancel_grace_s: float = 10.0
    agent_poll_s: float = 1.0
    scheduler_tick_s: float = 1.0
    leader_lease_s: float = 5.0
    retry_backoff_s: float = 1.0
    retry_backoff_max_s: float = 60.0
    node_lost_s: float = 30.0
    free_node_losses: int = 3
    bundle_max: int = 16
    bundle_s: float = 1.0
    look_ahead: int = 32
    age_boost_per_hour: float = 10.0

    max_tasks: int = 250_000
    max_frames: int = 1_000_000
    max_body: int = 16 * 2**20
    max_upload: int = 1 * 2**40
    free_space_floor: int = Field(default=256 * 2**20, description="Publishing stops below this free space.")
    spool_budget: int = 8 * 2**30
    shm_budget: int = 1 * 2**30
    store_budget: int = 1 * 2**40
    pinned_budget: int = 4 * 2**30
    gc_min_age_s: float = 86_400.0
    idempotency_keep_s: float = 86_400.0
    event_keep_s: float = 30 * 86_400.0

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
        """Folder of attempt logs; lies beside the store's contents so that every node reaches it."""
        return self.data / "logs"

    @property
    def run_dir(self) -> Path:
        """Folder for sockets, control files and pids of this machine."""
        return self.data / "run"


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The process's settings, read once."""
    return Settings()
