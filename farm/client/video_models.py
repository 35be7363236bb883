"""Models of the farm as the REST API answers them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from farm.client.models import Answer


class VideoModel(Answer):
    """One version of a model; ``files`` only where one was asked for by name."""

    name: str
    digest: str
    current: bool = True
    family: str
    title: str = ""
    pipeline_class: str = ""
    tasks: dict[str, Any] = Field(default_factory=dict)
    resume: str = ""
    weight_bytes: int = 0
    folder: str = ""
    remote_code: bool = False
    measured: dict[str, Any] = Field(default_factory=dict)
    files: list[dict[str, Any]] = Field(default_factory=list)
    added_at: datetime | None = None

    @property
    def label(self) -> str:
        """``name@digest``, shortened."""
        return f"{self.name}@{self.digest[:12]}"
