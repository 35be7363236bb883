"""Assets."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.models.common import In, Out, Sha256, example


class Asset(Out):
    """A stored asset."""

    sha256: Sha256
    bytes: int
    created: bool = Field(description="False: the store had these bytes already")


class NamedAsset(Asset):
    """An asset from a form upload, with the name that it was given."""

    name: str


class Uploaded(Out):
    """What a form upload stored."""

    assets: list[NamedAsset]


class Ask(In):
    """Hashes to look up before uploading."""

    model_config = example(sha256=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"])

    sha256: Annotated[list[Sha256], Field(min_length=1, max_length=10_000)]


class Missing(Out):
    """Those of the hashes asked about that must still be uploaded, in the order asked, without repeats."""

    missing: list[str]
