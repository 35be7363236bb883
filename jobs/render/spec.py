"""What can be asked of a render job."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from farm.frame_range import FrameRange
from jobs.encode.spec import FilmSettings
from jobs.fields import FrameRangeText, JobPath, Model, Resolution, fault
from jobs.render.camera import Camera, FileCamera, OrbitCamera
from jobs.render.outputs import JpegOutput, Output, PngOutput

Device = Literal["cpu", "cuda"]
Variant = Literal[
    "auto",
    "scalar_rgb",
    "scalar_spectral",
    "llvm_ad_rgb",
    "llvm_ad_spectral",
    "cuda_ad_rgb",
    "cuda_ad_spectral",
]
SCENE_SUFFIXES: Final = (".xml", ".obj", ".ply", ".glb")
DEFAULT_SAMPLES: Final = 64
"""Samples per pixel of a mesh in the neutral set, where the job names none."""


class Film(FilmSettings):
    """The film of a render job: its frames, encoded when all of them are there."""

    output: str | None = Field(
        default=None, description="Which output is filmed; left out: the first that shows the beauty."
    )


class Spec(Model):
    """A render job: one scene, a range of frames, and the files to make for each."""

    scene: JobPath = Field(
        description="Asset that holds the scene: Mitsuba .xml, or .obj, .ply, .glb in a neutral lit set."
    )
    engine: Literal["mitsuba"] = Field(default="mitsuba", description="The renderer.")
    frames: FrameRangeText = Field(default="1", description="Frame numbers, such as 1-100:2,200.")
    resolution: Resolution = Field(default=(640, 360), description="Width and height in pixels, or 640x360.")
    samples: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="Samples per pixel; left out: what the scene file says (64 for meshes).",
    )
    camera: Camera | None = Field(
        default=None, description="file, orbit or keyframes; left out: file for .xml, a turntable for meshes."
    )
    outputs: list[Output] = Field(
        default=[PngOutput()],
        min_length=1,
        max_length=16,
        description="Files of each frame: png, png16, jpeg, exr, exr32, or objects with format and options.",
    )
    transparent: bool = Field(
        default=False, description="Leave the background out and keep an alpha channel (PNG, EXR)."
    )
    exposure: float = Field(
        default=0.0,
        ge=-20,
        le=20,
        description="Stops by which PNG and JPEG are brightened; EXR stays linear.",
    )
    integrator: Literal["file", "path", "volpath", "direct"] = Field(
        default="file", description="How light is carried; file: as the scene says (path for meshes)."
    )
    max_depth: int | None = Field(
        default=None, ge=1, le=10_000, description="Longest light path; left out: as the scene says."
    )
    pixel_filter: Literal["file", "box", "tent", "gaussian", "mitchell", "catmullrom", "lanczos"] = Field(
        default="file",
        description=(
            "Reconstruction filter; box gives the same bits on every run, wider ones differ in the last bit "
            "with the order in which threads finish. file: as the scene says (box for meshes)."
        ),
    )
    denoise: Literal["none", "oidn", "optix"] = Field(
        default="none", description="Clean the beauty: oidn on any device, optix on cuda only."
    )
    device: Device = Field(
        default="cpu", description="cpu or cuda; what is not there fails, never falls back."
    )
    variant: Variant = Field(
        default="auto",
        description="Mitsuba variant; auto: llvm where a probe proves it, else scalar; or cuda.",
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="Seed; frame n is rendered with seed + n.")
    chunk_frames: int | None = Field(
        default=None, ge=1, le=1000, description="Frames per task; left out: chunk_seconds decides."
    )
    chunk_seconds: float = Field(
        default=20.0,
        gt=0,
        le=86_400,
        description="Target length of a task, by an estimate from pixels and samples.",
    )
    frame_timeout_s: float = Field(
        default=3600.0, gt=0, le=604_800, description="Longest time for one frame, loading included."
    )
    memory_limit: int | None = Field(
        default=None,
        ge=2**28,
        description="Bytes that the renderer may use; left out: three quarters of the machine.",
    )
    max_retries: int = Field(default=2, ge=0, le=20, description="Retries of a task after its first attempt.")
    film: Film | None = Field(default=None, description="Encode the frames to a film when all are there.")

    @model_validator(mode="after")
    def _scene_and_camera(self) -> Self:
        suffix = self.suffix
        if suffix not in SCENE_SUFFIXES:
            raise fault("scene", f"scene {self.scene!r} is not one of {', '.join(SCENE_SUFFIXES)}")
        if suffix != ".xml" and isinstance(self.camera, FileCamera):
            raise fault(
                "camera", f"camera file: a {suffix} has no camera that Mitsuba reads; use orbit or keyframes"
            )
        if suffix != ".xml" and self.integrator not in ("file", "path"):
            raise fault(
                "integrator",
                f"integrator {self.integrator}: the neutral set is rendered by path; leave it out",
            )
        return self

    @model_validator(mode="after")
    def _device_and_variant(self) -> Self:
        on_cuda = self.variant.startswith("cuda")
        if self.variant != "auto" and on_cuda != (self.device == "cuda"):
            other = "cuda" if on_cuda else "cpu"
            raise fault(
                "variant",
                f"variant {self.variant} runs on device {other}; set device: {other}, or variant: auto",
            )
        if self.denoise == "optix" and self.device != "cuda":
            raise fault(
                "denoise",
                "denoise optix: the OptiX denoiser runs on CUDA only; set denoise: oidn, or device: cuda",
            )
        return self

    @model_validator(mode="after")
    def _outputs_fit(self) -> Self:
        names = [output.name for output in self.outputs]
        for name in names:
            if names.count(name) > 1:
                raise fault("outputs", f"outputs: two are called {name}; give one another name")
        if self.transparent and any(isinstance(o, JpegOutput) for o in self.outputs):
            raise fault("transparent", "transparent: JPEG has no alpha; use png or exr")
        return self

    @model_validator(mode="after")
    def _film_fits(self) -> Self:
        if self.film is None:
            return self
        output = next((o for o in self.outputs if o.name == self.film_output()), None)
        if output is None or "beauty" not in output.layers:
            shown = [o.name for o in self.outputs if "beauty" in o.layers]
            raise fault(
                "film/output",
                f"output {self.film.output or '(none)'} does not show the beauty; "
                + (f"choose {' or '.join(shown)}" if shown else "add png to outputs"),
            )
        if self.transparent and self.film.background is None:
            raise fault(
                "film/background", "transparent frames need film.background, a colour such as #000000"
            )
        try:
            self.film.film_size(*self.resolution)
        except ValueError as error:
            raise fault("resolution", f"for the film, {error}") from None
        return self

    @property
    def suffix(self) -> str:
        """Lower-case suffix of the scene file, with its dot."""
        dot = self.scene.rfind(".")
        return self.scene[dot:].lower() if dot >= 0 else ""

    @property
    def resolved_camera(self) -> Camera:
        """The camera with its default filled in."""
        return self.camera or (FileCamera() if self.suffix == ".xml" else OrbitCamera())

    def frame_range(self) -> FrameRange:
        """The frame numbers."""
        return FrameRange.parse(self.frames)

    def film_output(self) -> str:
        """Name of the output that the film is made of; empty where none shows the beauty."""
        if self.film and self.film.output:
            return self.film.output
        shown = [o for o in self.outputs if "beauty" in o.layers]
        plain = [o for o in shown if o.format != "exr"]
        return (plain or shown)[0].name if shown else ""
