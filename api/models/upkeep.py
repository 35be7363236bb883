"""Collecting contents that nothing refers to, and the farm's own health."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from api.models.common import In, Out, example


class Collect(In):
    """A collection of unreferenced contents."""

    model_config = example(dry_run=True)

    dry_run: bool = Field(default=True, description="Only count what would go")


class Collected(Out):
    """What was, or would be, removed. ``bytes`` counts contents alone."""

    dry_run: bool
    contents: int = Field(description="Contents that nothing refers to")
    bytes: int
    strays: int = Field(description="Files in the store that no record names")
    temporary: int = Field(description="What broken uploads left behind")


class Check(Out):
    """One thing that the farm needs, really tried."""

    ok: bool
    detail: str
    seconds: Annotated[float, Field(ge=0)]


class Readiness(Out):
    """Whether this process can serve."""

    status: Literal["ready", "not ready"]
    checks: dict[str, Check]


class KindInfo(Out):
    """A kind of job and the JSON schema of its spec."""

    name: str
    spec_schema: dict[str, Any]
