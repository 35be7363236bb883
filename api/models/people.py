"""Projects, users, keys and sessions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from api.models.common import In, Label, Out, Time, example

Scope = Literal["read", "submit", "operate", "admin", "worker"]
_Share = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False, strict=False)]
_Slots = Annotated[int | None, Field(ge=0, le=1_000_000)]
_Quota = Annotated[float | None, Field(ge=0, le=1e15, allow_inf_nan=False, strict=False)]


class Project(Out):
    """Who pays."""

    id: str
    name: str
    share: float
    max_slots: int | None
    quota_slot_s: float | None
    reserved: bool = Field(description="Whether a part of the slots on nodes that stay is kept for it")
    used_slot_s: float
    used_gpu_s: float
    version: int
    created_at: Time


class ProjectMake(In):
    """A project to make."""

    model_config = example(name="feature", share=2.0, max_slots=8, quota_slot_s=None, reserved=False)

    name: Label
    share: _Share = 1.0
    max_slots: _Slots = None
    quota_slot_s: _Quota = None
    reserved: bool = False


class ProjectChange(In):
    """What may be changed on a project; fields left out stay, null lifts a cap."""

    model_config = example(share=1.5, max_slots=None)

    name: Label | None = None
    share: _Share | None = None
    max_slots: _Slots = None
    quota_slot_s: _Quota = None
    reserved: bool | None = None


class User(Out):
    """Who asks."""

    id: str
    name: str
    created_at: Time


class UserMake(In):
    """A user to make."""

    model_config = example(name="ada")

    name: Label


class Key(Out):
    """A key without its secret."""

    id: str
    name: str
    hint: str = Field(description="The secret's last characters, to tell keys apart")
    scopes: list[str]
    user_id: str
    project_id: str | None
    created_at: Time
    used_at: Time | None
    revoked_at: Time | None


class KeyMake(In):
    """A key to make."""

    model_config = example(name="render node 3", scopes=["read", "submit"], project="feature")

    name: Label
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=5, examples=[["read", "submit"]])]
    user: Annotated[str | None, Field(max_length=200, description="Name or id; null: yourself")] = None
    project: Annotated[
        str | None, Field(max_length=200, description="Name or id: the key then sees this project alone")
    ] = None


class KeyMade(Key):
    """A new key. Its secret is shown this once and kept nowhere."""

    secret: str | None = Field(description="The key itself; null when an Idempotency-Key replays the answer")


class Login(In):
    """The one place where a key is given in a body: to exchange it for a session cookie."""

    model_config = example(key="sfk_the_secret_that_was_shown_once")

    key: Annotated[str, Field(min_length=1, max_length=300)]


class Session(Out):
    """Who you are here."""

    user: str
    user_id: str
    key_id: str
    scopes: list[str]
    project_id: str | None
    csrf: str | None = Field(
        description="Send it as X-CSRF-Token with POST, PUT, PATCH and DELETE; null where a key was used"
    )
    expires_at: Time | None
