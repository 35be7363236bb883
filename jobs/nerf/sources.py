"""Where the pictures of a nerf job come from."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from jobs.fields import JobPath, Model

FILMS: Final = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v")


class ImagesSource(Model):
    """Photographs without cameras: a folder of the job's assets, or a .zip among them."""

    type: Literal["images"] = "images"
    path: JobPath = Field(description="Folder of pictures, or a .zip of them.")


class TransformsSource(Model):
    """Pictures with cameras in a ``transforms.json``, as NeRF-synthetic and nerfstudio write them."""

    type: Literal["transforms"] = "transforms"
    path: JobPath = Field(description="The .json file, or a .zip that holds one.")


class ColmapSource(Model):
    """Pictures with cameras in a COLMAP model (binary or text)."""

    type: Literal["colmap"] = "colmap"
    path: JobPath = Field(description="Folder with cameras, images and points3D, or a .zip with all.")
    images: JobPath = Field(default="images", description="Folder of the pictures.")


class VideoSource(Model):
    """A film: sharp frames are picked by time and blur."""

    type: Literal["video"] = "video"
    path: JobPath = Field(description="The film.")
    count: int = Field(default=100, ge=3, le=5000, description="Most frames that are picked.")
    max_side: int = Field(default=1600, ge=64, le=16_384, description="Longest side of a picked frame.")


class JobSource(Model):
    """The frames of another job, which this one comes after, with the cameras that it rendered them by."""

    type: Literal["job"] = "job"
    job: str = Field(pattern=r"^job_[0-9a-zA-Z_-]{1,64}$", description="Id of a job that `after` names.")
    step: str = Field(default="render", max_length=64, description="Its step that made the frames.")
    output: str = Field(default="beauty.png", max_length=64, description="The output that is looked at.")


Source = Annotated[
    ImagesSource | TransformsSource | ColmapSource | VideoSource | JobSource, Field(discriminator="type")
]


def read_source(text: str) -> dict[str, Any]:
    """The short form of a source: a path by its name, or a job's id."""
    lower = text.lower()
    if text.startswith("job_"):
        return {"type": "job", "job": text}
    if lower.endswith(".json"):
        return {"type": "transforms", "path": text}
    if lower.endswith(FILMS):
        return {"type": "video", "path": text}
    return {"type": "images", "path": text.rstrip("/")}
