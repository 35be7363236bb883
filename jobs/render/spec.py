"""What can be asked of a render job."""

from __future__ import annotations

from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from farm.frame_range import FrameRange
from jobs.encode.spec import FilmSettings
from jobs.fields import FrameRangeText, JobPath, Model, Resolution, fault
from jobs.render.blender.settings import BlenderSettings
from jobs.render.camera import Camera, FileCamera, OrbitCamera
from jobs.render.outputs import ExrOutput, JpegOutput, Output, PngOutput

Renderer = Literal["mitsuba", "blender"]
Device = Literal["cpu", "cuda", "optix", "hip", "oneapi"]
Variant = Literal[
    "auto",
    "scalar_rgb",
    "scalar_spectral",
    "llvm_ad_rgb",
    "llvm_ad_spectral",
    "cuda_ad_rgb",
    "cuda_ad_spectral",
]
MITSUBA_SUFFIXES: Final = (".xml", ".obj", ".ply", ".glb")
LOAD_SHARE: Final = 0.05
"""A chunk is long enough that loading the scene, where a slot has to, takes at most this share of it."""
BLENDER_SUFFIXES: Final = (
    ".blend", ".glb", ".gltf", ".obj", ".ply", ".usd", ".usda", ".usdc", ".usdz",
)  # fmt: skip
SCENE_SUFFIXES: Final = (*MITSUBA_SUFFIXES, *(s for s in BLENDER_SUFFIXES if s not in MITSUBA_SUFFIXES))
DEFAULT_SAMPLES: Final = 64
"""Samples per pixel of a mesh in the neutral set, where the job names none."""


DEFAULT_RESOLUTION: Final = (640, 360)
"""Width and height in pixels of a Mitsuba render, where the job names none."""
_MITSUBA_ONLY: Final = {
    "camera": "camera is Mitsuba's; name a camera of the file, or auto, in blender.camera",
    "exposure": "exposure is Mitsuba's; set blender.exposure",
    "integrator": "integrator is Mitsuba's; choose Cycles, EEVEE or Workbench in blender.engine",
    "max_depth": "max_depth is Mitsuba's; light paths are as the Blender file says",
    "pixel_filter": "pixel_filter is Mitsuba's; it is as the Blender file says",
    "denoise": "denoise is Mitsuba's; set blender.denoiser",
    "variant": "variant is Mitsuba's; choose a device in device",
}
_BLENDER_ONLY: Final = {"blender": "blender holds settings of Blender; set engine: blender, or leave it out"}


class Film(FilmSettings):
    """The film of a render job: its frames, encoded when all of them are there."""

    output: str | None = Field(
        default=None, description="Which output is filmed; left out: the first that shows the beauty."
    )


class Spec(Model):
    """A render job: one scene, a range of frames, and the files to make for each."""

    scene: JobPath = Field(
        description="Asset with the scene: .blend, .gltf, .usd (Blender), .xml (Mitsuba), .obj, .ply, .glb."
    )
    engine: Renderer = Field(default="mitsuba", description="The renderer; left out: by the scene's suffix.")
    frames: FrameRangeText | None = Field(
        default=None,
        description="Frame numbers, such as 1-100:2,200; left out: 1, or the range of a Blender file.",
    )
    resolution: Resolution | None = Field(
        default=None,
        description="Width and height in pixels, or 640x360; left out: 640x360, or as a Blender file says.",
    )
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
    transparent: bool | None = Field(
        default=None,
        description="No background, an alpha channel; left out: no, or as a Blender file says.",
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
        default="cpu",
        description="cpu, cuda; Blender: also optix, hip, oneapi. What is not there fails, never falls back.",
    )
    variant: Variant = Field(
        default="auto",
        description="Mitsuba variant; auto: llvm where a probe proves it, else scalar; or cuda.",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**31,
        description="Seed; frame n is rendered with seed + n. Left out: 0, or as a Blender file says.",
    )
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
    blender: BlenderSettings | None = Field(default=None, description="What only Blender knows.")

    @model_validator(mode="before")
    @classmethod
    def _engine_by_suffix(cls, data: Any) -> Any:
        if isinstance(data, dict) and "engine" not in data and isinstance(data.get("scene"), str):
            suffix = _suffix(data["scene"])
            chosen = "blender" if suffix in BLENDER_SUFFIXES and suffix not in MITSUBA_SUFFIXES else "mitsuba"
            return {**data, "engine": chosen}
        return data

    @model_validator(mode="after")
    def _scene_fits_the_engine(self) -> Self:
        own = BLENDER_SUFFIXES if self.engine == "blender" else MITSUBA_SUFFIXES
        if self.suffix not in SCENE_SUFFIXES:
            raise fault("scene", f"scene {self.scene!r} is not one of {', '.join(SCENE_SUFFIXES)}")
        if self.suffix not in own:
            other = "mitsuba" if self.engine == "blender" else "blender"
            raise fault(
                "engine", f"{self.engine} does not read {self.suffix}; set engine: {other}, or leave it out"
            )
        foreign = _MITSUBA_ONLY if self.engine == "blender" else _BLENDER_ONLY
        for name, reason in foreign.items():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise fault(name, reason)
        if self.engine == "blender":
            self._fill(blender=self.blender or BlenderSettings())
            self.settings.fits(self.device, _only_frame(self.frames), self.film is not None)
        else:
            self._fill(
                frames=self.frames or "1",
                resolution=self.resolution or DEFAULT_RESOLUTION,
                transparent=bool(self.transparent),
                seed=self.seed or 0,
            )
        return self

    @model_validator(mode="after")
    def _mitsuba_fits(self) -> Self:
        if self.engine != "mitsuba":
            return self
        if self.device not in ("cpu", "cuda"):
            raise fault("device", f"device {self.device}: Mitsuba runs on cpu or cuda; choose one of these")
        if self.suffix != ".xml" and isinstance(self.camera, FileCamera):
            raise fault(
                "camera",
                f"camera file: a {self.suffix} has no camera that Mitsuba reads; use orbit or keyframes",
            )
        if self.suffix != ".xml" and self.integrator not in ("file", "path"):
            raise fault(
                "integrator",
                f"integrator {self.integrator}: the neutral set is rendered by path; leave it out",
            )
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
        if self.engine == "blender":
            _blender_outputs(self.outputs)
        return self

    @model_validator(mode="after")
    def _film_fits(self) -> Self:
        if self.film is None:
            return self
        output = next((o for o in self.outputs if o.name == self.film_output()), None)
        if output is None or output not in self._filmed():
            shown = [o.name for o in self._filmed()]
            raise fault(
                "film/output",
                f"output {self.film.output or '(none)'} does not show the beauty; "
                + (f"choose {' or '.join(shown)}" if shown else "add png to outputs"),
            )
        if self.transparent and self.film.background is None:
            raise fault(
                "film/background", "transparent frames need film.background, a colour such as #000000"
            )
        if self.resolution is None:
            return self
        try:
            self.film.film_size(*self.resolution)
        except ValueError as error:
            raise fault("resolution", f"for the film, {error}") from None
        return self

    def _fill(self, **values: Any) -> None:
        # the model is frozen; this settles defaults while the instance is made: the stored spec has them
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _filmed(self) -> list[PngOutput | JpegOutput | ExrOutput]:
        """Outputs that a film can be made of: they show the beauty."""
        shown = [o for o in self.outputs if "beauty" in o.layers]
        # the film reads R, G and B; a multilayer EXR of Blender calls them otherwise
        return [o for o in shown if not (self.engine == "blender" and isinstance(o, ExrOutput))]

    @property
    def suffix(self) -> str:
        """Lower-case suffix of the scene file, with its dot."""
        return _suffix(self.scene)

    @property
    def resolved_camera(self) -> Camera:
        """Mitsuba's camera with its default filled in."""
        return self.camera or (FileCamera() if self.suffix == ".xml" else OrbitCamera())

    @property
    def settings(self) -> BlenderSettings:
        """Blender's settings with their defaults filled in."""
        return self.blender or BlenderSettings()

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, where the job says them (Mitsuba always does)."""
        return self.resolution or DEFAULT_RESOLUTION

    def frame_range(self) -> FrameRange:
        """The frame numbers, where the job says them (Mitsuba always does)."""
        return FrameRange.parse(self.frames or "1")

    def chunk_target(self, load_s: float) -> float | None:
        """Seconds that a task should last where loading takes ``load_s``; None: ``chunk_frames`` rules."""
        return None if self.chunk_frames else max(self.chunk_seconds, load_s / LOAD_SHARE)

    def film_output(self) -> str:
        """Name of the output that the film is made of; empty where none shows the beauty."""
        if self.film and self.film.output:
            return self.film.output
        shown = self._filmed()
        plain = [o for o in shown if o.format != "exr"]
        return (plain or shown)[0].name if shown else ""


def _suffix(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:].lower() if dot >= 0 else ""


def _only_frame(frames: str | None) -> bool | None:
    """Whether the range holds one frame; ``None`` where the file decides."""
    return None if frames is None else len(FrameRange.parse(frames)) == 1


def _blender_outputs(outputs: list[PngOutput | JpegOutput | ExrOutput]) -> None:
    """What Blender writes: pictures of the beauty, and one multilayer EXR with all passes."""
    exrs = [output for output in outputs if isinstance(output, ExrOutput)]
    if len(exrs) > 1:
        raise fault("outputs", f"outputs: Blender writes one multilayer EXR a frame, not {len(exrs)}")
    if exrs and exrs[0].layers != ExrOutput.model_fields["layers"].default:
        raise fault("outputs", "layers are Mitsuba's; name Blender's passes in blender.passes")
    if any(isinstance(output, PngOutput) and output.layer != "beauty" for output in outputs):
        raise fault("outputs", "Blender's PNG shows the beauty; passes go into exr (blender.passes)")
