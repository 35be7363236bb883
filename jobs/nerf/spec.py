"""What can be asked of a nerf job: photographs of a scene in, a radiance field and new views out."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from farm.frame_range import FrameRange
from jobs.encode.spec import FilmSettings
from jobs.fields import Colour, FrameRangeText, JobPath, Model, Resolution, fault
from jobs.nerf.paths import OrbitPath, Path
from jobs.nerf.sources import ImagesSource, JobSource, Source, read_source
from jobs.render.outputs import ExrOutput, JpegOutput, Output, PngOutput

Method = Literal["nerf", "splat"]
Form = Literal["auto", "dense", "hash", "torch", "gsplat"]
Export = Literal["ply", "spz", "mesh", "points", "colmap", "cameras"]
FORMS: Final[dict[str, dict[str, str]]] = {
    "nerf": {"cpu": "dense", "cuda": "hash"},
    "splat": {"cpu": "torch", "cuda": "gsplat"},
}
"""The form that ``auto`` stands for, by method and device."""
_BOTH: Final = {"dense": "nerf", "hash": "nerf", "torch": "splat", "gsplat": "splat"}
_ONLY_CUDA: Final = ("gsplat",)

Finite = Annotated[float, Field(allow_inf_nan=False)]
Place = tuple[Finite, Finite, Finite]


class PoseSettings(Model):
    """How cameras are found where the source has none, and what is done with those it has."""

    mapper: Literal["global", "incremental"] = Field(
        default="global",
        description="global places all cameras at once (GLOMAP); incremental one after another.",
    )
    matching: Literal["auto", "exhaustive", "sequential", "vocabulary"] = Field(
        default="auto",
        description="Which pictures are compared. auto: neighbours in time for films, all pairs up to 200.",
    )
    camera_model: Literal[
        "SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "OPENCV_FISHEYE"
    ] = Field(default="OPENCV", description="Lens model that is fitted.")
    single_camera: bool | None = Field(
        default=None, description="All pictures by one lens; left out: one per size and EXIF camera."
    )
    feature_side: int = Field(
        default=1200, ge=64, le=8192, description="Longest side in pixels at which features are looked for."
    )
    max_features: int = Field(default=4096, ge=128, le=65_536, description="Most features of a picture.")
    min_registered: float = Field(
        default=0.7, gt=0, le=1, description="Share of the pictures that must be placed, else the job fails."
    )
    max_error: float = Field(
        default=2.0, gt=0, le=50, description="Largest mean reprojection error in pixels that is accepted."
    )


class PictureSettings(Model):
    """How pictures are prepared."""

    max_side: int = Field(
        default=1600, ge=16, le=16_384, description="Larger pictures are shrunk to this longest side."
    )
    masks: JobPath | None = Field(
        default=None, description="Folder of masks named like the pictures; black is left out of training."
    )
    hold_out: int = Field(
        default=8, ge=0, le=1000, description="Every n-th picture is kept for the evaluation; 0: none."
    )


class TrainSettings(Model):
    """How long and how finely a field is trained. It ends at the first budget that is reached."""

    iterations: int | None = Field(
        default=None, ge=1, le=10_000_000, description="Most iterations; left out: by the method's form."
    )
    seconds: float | None = Field(
        default=None, gt=0, le=604_800, description="Longest working time in seconds."
    )
    target_psnr: float | None = Field(
        default=None, gt=0, le=60, description="Stop once held-out views reach this PSNR in dB."
    )
    ray_samples: int | None = Field(
        default=None, ge=1024, le=2**24, description="Samples looked at per iteration; left out: by device."
    )
    resolution: int = Field(default=120, ge=16, le=512, description="Cells a side of a dense grid.")
    samples: int = Field(default=128, ge=16, le=2048, description="Samples along a ray.")
    sh_degree: int | None = Field(
        default=None,
        ge=0,
        le=3,
        description="Degree of view-dependent colour; left out: 1, splats on CUDA 3.",
    )
    smoothness: float = Field(default=0.0003, ge=0, le=100, description="Weight of total variation (dense).")
    hash_log2: int = Field(default=19, ge=10, le=24, description="Size of a hash table as a power of two.")
    cap: int | None = Field(
        default=None, ge=16, le=20_000_000, description="Most Gaussians; left out: 3,000, on CUDA 1,000,000."
    )
    appearance: bool = Field(
        default=False, description="Learn a gain and an offset of colour per picture (exposure changes)."
    )
    background: Literal["auto", "black", "white", "random", "learned"] | Colour = Field(
        default="auto",
        description="What lies behind everything. auto: random behind pictures with alpha, else learned.",
    )
    contraction: Literal["auto", "sphere", "none"] = Field(
        default="auto", description="Squeeze the far world into a shell; auto: not for pictures with alpha."
    )
    checkpoint_s: float = Field(default=60.0, gt=0, le=86_400, description="Seconds between checkpoints.")
    preview_s: float = Field(default=10.0, gt=0, le=86_400, description="Seconds between curve and preview.")
    vram: int | None = Field(
        default=None, ge=2**28, description="Bytes of GPU memory that may be used; left out: what is free."
    )


class Film(FilmSettings):
    """The film of a nerf job: its views, encoded when all of them are there."""

    output: str | None = Field(
        default=None, description="Which output is filmed; left out: the first that shows the beauty."
    )


def _source(value: Any) -> Any:
    return read_source(value) if isinstance(value, str) else value


class Spec(Model):
    """A nerf job."""

    source: Annotated[Source, BeforeValidator(_source)] = Field(
        description="Where pictures come from; a path is read by its name (folder, .zip, .json, film)."
    )
    method: Method = Field(default="nerf", description="nerf: a radiance field; splat: 3D Gaussians.")
    form: Form = Field(
        default="auto",
        description=(
            "dense (CPU), hash (nerf); torch (small, for CPUs), gsplat (CUDA, splat). auto: by device."
        ),
    )
    device: Literal["cpu", "cuda"] = Field(
        default="cpu", description="What is not there fails, never falls back."
    )
    pose: PoseSettings = Field(default=PoseSettings(), description="How cameras are found.")
    pictures: PictureSettings = Field(default=PictureSettings(), description="How pictures are prepared.")
    train: TrainSettings = Field(default=TrainSettings(), description="How long and how finely.")
    path: Path | None = Field(
        default=OrbitPath(),
        description="The camera's path: orbit, interpolate, spiral, keyframes, file; null: no views.",
    )
    frames: FrameRangeText | None = Field(
        default=None, description="Frames of the path; left out: 1-48, or as the path's file says."
    )
    resolution: Resolution | None = Field(
        default=None, description="Size of the views in pixels; left out: that of the first picture."
    )
    outputs: list[Output] = Field(
        default=[PngOutput()],
        min_length=1,
        max_length=8,
        description="Files of each view: png, jpeg, exr, or objects with layers beauty, depth, normal.",
    )
    transparent: bool = Field(default=False, description="Views without background, with an alpha channel.")
    exports: list[Export] = Field(
        default=[], max_length=6, description="ply, spz (splats), mesh (.glb), points, colmap, cameras."
    )
    crop: Literal["none"] | tuple[Place, Place] = Field(
        default="none",
        description="Box that splats, mesh and points are cut to: [[min], [max]], scene coordinates, z up.",
    )
    mesh_resolution: int = Field(default=128, ge=16, le=1024, description="Cells a side of the mesh's grid.")
    film: Film | None = Field(default=None, description="Encode the views to a film when all are there.")
    seed: int = Field(default=0, ge=0, lt=2**31, description="Seed of everything that is drawn.")
    chunk_frames: int | None = Field(
        default=None, ge=1, le=1000, description="Views per task; left out: by their size."
    )
    max_retries: int = Field(default=2, ge=0, le=20, description="Retries of a task after its first attempt.")
    timeout_s: float = Field(default=86_400.0, gt=0, le=2_592_000, description="Longest time of one task.")

    @model_validator(mode="after")
    def _method_fits(self) -> Self:
        if self.form != "auto" and _BOTH[self.form] != self.method:
            raise fault(
                "form",
                f"form {self.form} belongs to method {_BOTH[self.form]}; set method: {_BOTH[self.form]}, "
                "or form: auto",
            )
        if self.form in _ONLY_CUDA and self.device != "cuda":
            raise fault(
                "form", f"form {self.form} runs on CUDA only; set device: cuda, or form: torch for a CPU"
            )
        if self.form == "torch" and self.device == "cuda":
            raise fault(
                "form", "form torch is the small rasteriser for CPUs; set form: gsplat, or device: cpu"
            )
        if self.method == "nerf":
            for name in ("ply", "spz"):
                if name in self.exports:
                    raise fault(
                        "exports", f"{name} holds Gaussians; set method: splat, or export mesh or points"
                    )
        if self.crop != "none" and any(low >= high for low, high in zip(*self.crop, strict=True)):
            raise fault(
                "crop", f"crop {self.crop}: each min must lie below its max; swap them, or crop: none"
            )
        if len(set(self.exports)) != len(self.exports):
            raise fault("exports", "exports names one twice")
        if self.train.target_psnr is not None and self.pictures.hold_out == 0:
            raise fault(
                "train/target_psnr", "a target needs held-out pictures; set pictures.hold_out to 8, say"
            )
        if isinstance(self.source, JobSource) and self.pictures.masks is not None:
            raise fault("pictures/masks", "the frames of a job have no masks; leave them out")
        return self

    @model_validator(mode="after")
    def _outputs_fit(self) -> Self:
        names = [output.name for output in self.outputs]
        for name in names:
            if names.count(name) > 1:
                raise fault("outputs", f"outputs: two are called {name}; give one another name")
        for output in self.outputs:
            if isinstance(output, ExrOutput) and output.layers == ExrOutput.model_fields["layers"].default:
                # left as it is, an EXR holds what a field knows
                object.__setattr__(output, "layers", ("beauty", "depth", "normal"))
            if "albedo" in output.layers:
                raise fault("outputs", "a field has no albedo; choose among beauty, depth and normal")
        if self.transparent and any(isinstance(o, JpegOutput) for o in self.outputs):
            raise fault("transparent", "transparent: JPEG has no alpha; use png or exr")
        if self.film is not None:
            if self.path is None:
                raise fault("film", "a film needs a camera path; leave path out for a turntable")
            shown = [o.name for o in self.outputs if "beauty" in o.layers]
            if self.film_output() not in shown:
                raise fault(
                    "film/output",
                    f"output {self.film.output or '(none)'} does not show the beauty; "
                    + (f"choose {' or '.join(shown)}" if shown else "add png to outputs"),
                )
            if self.transparent and self.film.background is None:
                raise fault(
                    "film/background", "transparent views need film.background, a colour such as #000000"
                )
            if self.resolution is not None:
                try:
                    self.film.film_size(*self.resolution)
                except ValueError as error:
                    raise fault("resolution", f"for the film, {error}") from None
        return self

    @property
    def chosen_form(self) -> str:
        """The form that trains, with ``auto`` resolved by the device."""
        return FORMS[self.method][self.device] if self.form == "auto" else self.form

    def frame_range(self) -> FrameRange | None:
        """The views' numbers, where the job says them."""
        return None if self.frames is None else FrameRange.parse(self.frames)

    def film_output(self) -> str:
        """Name of the output that the film is made of; empty where none shows the beauty."""
        if self.film and self.film.output:
            return self.film.output
        shown = [o for o in self.outputs if "beauty" in o.layers]
        plain = [o for o in shown if o.format != "exr"]
        return (plain or shown)[0].name if shown else ""

    def has_poses(self) -> bool:
        """Whether the source tells its cameras."""
        return not isinstance(self.source, ImagesSource) and self.source.type != "video"


def safe_name(text: str) -> str:
    """A name for a file of the job's own, from any picture's name."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[-80:] or "_"
