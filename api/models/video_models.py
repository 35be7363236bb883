"""Models: versions of diffusers pipeline folders, what they can do, and what was measured on them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from api.models.common import In, Out, Page, Sha256, Time, example
from jobs.video.facts import Facts
from jobs.video.gates import MIN_PSNR_DB, MIN_SSIM
from jobs.video.models import ModelFile

Name = Annotated[
    str,
    Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", description="How jobs call it", examples=["wan2.1-1.3b"]),
]


class ModelAdd(In):
    """A version of a model, as `farm models add` finds it on a machine that sees the folder."""

    model_config = example(
        name="wan2.1-1.3b",
        folder="/srv/models/wan2.1-1.3b",
        files=[
            {
                "path": "model_index.json",
                "bytes": 400,
                "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            }
        ],
        facts={
            "family": "wan2.1",
            "pipeline_class": "WanPipeline",
            "tasks": ["t2v"],
            "denoisers": ["transformer"],
            "components": {"transformer": "WanTransformer3DModel", "vae": "AutoencoderKLWan"},
            "temporal": 4,
            "size_divisor": 16,
            "most_frames": 257,
            "latent_channels": 16,
            "resume": "exact",
            "max_sequence_length": 512,
        },
    )

    name: Name
    folder: Annotated[
        str, Field(min_length=1, max_length=4000, description="Absolute path, the same on every node")
    ]
    remote_code: bool = Field(
        default=False, description="Allow the Python that the folder brings to run on every node"
    )
    files: list[ModelFile] = Field(min_length=1, max_length=5000)
    facts: Facts


class ModelRules(Out):
    """What is asked of one task's size and frame count."""

    frames: str = Field(description="The rule of frame counts, such as `4k + 1`")
    least_frames: int
    most_frames: int


class Measured(Out):
    """How like the plain films those of a lossy choice are; it is refused below the bounds."""

    ssim: float = Field(description=f"At least {MIN_SSIM:g} passes")
    psnr_db: float = Field(description=f"At least {MIN_PSNR_DB:g} passes")
    passed: bool
    prompts: int
    steps: int
    width: int
    height: int
    frames: int
    measured_on: str


class Model(Out):
    """One version of a model."""

    name: str
    digest: Sha256 = Field(description="Over all of its files; `name@digest` pins it in a job")
    current: bool = Field(description="Whether the bare name means this version")
    family: str
    title: str
    pipeline_class: str
    tasks: dict[str, ModelRules]
    resume: str = Field(description="exact: a parked film goes on bit for bit; restart: it begins again")
    size_divisor: int
    fixed_size: tuple[int, int] | None
    defaults: dict[str, Any] = Field(
        description="What a job of the preset standard gets where it names nothing"
    )
    experts: list[str]
    schedulers: list[str]
    attention: list[str]
    caches: list[str]
    dtypes: list[str]
    max_sequence_length: int
    parameters: dict[str, int]
    weight_bytes: int
    folder: str
    remote_code: bool
    measured: dict[str, Measured] = Field(description="Lossy choices that were measured")
    added_at: Time
    named_at: Time


class ModelDetail(Model):
    """One version with its files."""

    files: list[ModelFile]


class ListedModel(Out):
    """A model as OpenAI's clients list it."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Seconds since 1970")
    owned_by: str = "stillframe"


class ModelPage(Page[Model]):
    """A page of models; ``data`` has the same ones as OpenAI's clients read them."""

    object: Literal["list"] = "list"
    data: list[ListedModel]


class MeasuredAdd(In):
    """A measurement of one lossy choice."""

    model_config = example(
        choice="cache:schedule:50:10,12,14",
        ssim=0.98,
        psnr_db=38.5,
        prompts=4,
        steps=50,
        width=832,
        height=480,
        frames=81,
        measured_on="one H200",
    )

    choice: Annotated[str, Field(min_length=1, max_length=2000, examples=["cache:schedule:50:10,12,14"])]
    ssim: Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False, strict=False)]
    psnr_db: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False, strict=False)]
    prompts: Annotated[int, Field(ge=1, le=100_000)]
    steps: Annotated[int, Field(ge=1, le=1000)]
    width: Annotated[int, Field(ge=1, le=16_384)]
    height: Annotated[int, Field(ge=1, le=16_384)]
    frames: Annotated[int, Field(ge=1, le=100_000)]
    measured_on: Annotated[str, Field(min_length=1, max_length=400)]
