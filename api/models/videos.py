"""Videos as OpenAI's API shows them, over jobs of the kind ``video``. Times are seconds since 1970 there."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.models.common import Label, Labels, Out, Priority

Status = Literal["queued", "in_progress", "completed", "failed"]


class InputReference(BaseModel):
    """The picture that the film begins with: exactly one of the two."""

    model_config = ConfigDict(extra="forbid", strict=True)

    image_url: Annotated[
        str | None,
        Field(description="A data URL (data:image/png;base64,…); the farm fetches nothing from elsewhere"),
    ] = None
    file_id: Annotated[
        str | None, Field(max_length=64, description="SHA-256 of a file uploaded to /v1/assets")
    ] = None


class VideoCreate(BaseModel):
    """A video to make. Every other field of a video job's spec may stand beside these."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        json_schema_extra={
            "examples": [{"prompt": "a red kite over dunes", "seconds": "5", "size": "832x480"}]
        },
    )

    prompt: str = Field(description="What is to be seen")
    model: Annotated[
        str | None, Field(max_length=140, description="A model of this farm; left out: the only one")
    ] = None
    seconds: Annotated[str | float | None, Field(description="Length in seconds, such as 5")] = None
    size: Annotated[str | None, Field(max_length=20, examples=["832x480"])] = None
    input_reference: InputReference | None = None
    seed: Annotated[int | None, Field(ge=0, le=2**63 - 1)] = None
    name: Annotated[
        Label | None, Field(description="Name of the job; left out: the prompt's first words")
    ] = None
    project: Annotated[str | None, Field(max_length=200)] = None
    priority: Priority = 50
    labels: Labels = Field(default_factory=dict)


class VideoError(Out):
    """Why a video was not made."""

    code: str
    message: str


class Video(Out):
    """A video. ``id`` is its job's, so that every other route of the farm takes it too."""

    id: str
    object: Literal["video"] = "video"
    model: str = Field(description="`name@digest`: the version that makes it")
    status: Status
    progress: int = Field(description="Per cent", ge=0, le=100)
    prompt: str
    seconds: str
    size: str
    created_at: int
    completed_at: int | None
    expires_at: int | None = None
    error: VideoError | None
    remixed_from_video_id: str | None = None


class VideoPage(Out):
    """A page of videos; ask with ``after=last_id`` for the next."""

    object: Literal["list"] = "list"
    data: list[Video]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeleted(Out):
    """A video that was deleted."""

    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: bool = True


def request_body() -> dict[str, Any]:
    """What ``POST /v1/videos`` takes, for the OpenAPI document: JSON, or a form with a file."""
    schema = VideoCreate.model_json_schema(ref_template="#/components/schemas/{model}")
    nested = schema.pop("$defs")
    schema["properties"]["input_reference"] = {"anyOf": [nested["InputReference"], {"type": "null"}]}
    simple = {
        name: schema["properties"][name] for name in ("prompt", "model", "size", "seconds", "seed", "project")
    }
    form = {
        "type": "object",
        "properties": {**simple, "input_reference": {"type": "string", "format": "binary"}},
        "required": ["prompt"],
        "additionalProperties": False,
    }
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": schema},
                "multipart/form-data": {"schema": form, "example": {"prompt": "a red kite over dunes"}},
            },
        }
    }
