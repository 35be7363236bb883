"""Bases and types that every resource shares."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

Item = TypeVar("Item")


def example(**fields: Any) -> ConfigDict:
    """What to add to the configuration of a request body for an example of it in the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class In(BaseModel):
    """A request body: unknown fields and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Out(BaseModel):
    """A response body, made from a row of a repository; further columns of the row stay inside."""

    model_config = ConfigDict(extra="ignore", from_attributes=True)


def _from_epoch(value: Any) -> Any:
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    return value


def rfc3339(value: datetime | float) -> str:
    """A time (or seconds since the epoch) as UTC text with milliseconds."""
    if not isinstance(value, datetime):
        value = datetime.fromtimestamp(value, UTC)
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Time = Annotated[
    datetime,
    BeforeValidator(_from_epoch),
    PlainSerializer(rfc3339, return_type=str, when_used="json"),
    Field(description="UTC, RFC 3339", examples=["2026-11-30T17:22:05.120Z"]),
]

Sha256 = Annotated[
    str,
    Field(
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256, 64 lower-case hexadecimal digits",
        examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    ),
]


def _printable(value: str) -> str:
    if not value.strip():
        raise ValueError("it is empty")
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise ValueError("it may not hold control characters or line breaks")
    return value


Label = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
"""A name that people give: one line, 1 to 200 characters."""

Priority = Annotated[
    int, Field(ge=0, le=100, description="0 to 100; higher goes first within a project", examples=[50])
]
Labels = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")],
        Annotated[str, Field(max_length=200)],
    ],
    Field(max_length=64, description="Free labels, such as show, shot, version", examples=[{"shot": "s010"}]),
]
Count = Annotated[int, Field(ge=0)]
SmallInt = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]


class Page(BaseModel, Generic[Item]):
    """One page of a list; give ``next`` as ``cursor`` to get the page after it."""

    items: list[Item]
    next: str | None = Field(description="Cursor of the next page; null: this was the last one")
