"""A spec against a model: nearest legal values, presets, seconds, and choices that a model cannot do."""

from __future__ import annotations

from typing import Any

import pytest

from farm.errors import InvalidSpec
from farm.scheduler.fit import fits
from jobs.kind import Asset, ExpandContext
from jobs.registry import kind
from jobs.video.folder import inspect
from jobs.video.models import ModelVersion
from jobs.video.payload import Generation, read_step
from tests.kinds import model_folders as made

VIDEO = kind("video")


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelVersion]:
    root = tmp_path_factory.mktemp("models")
    folders = {
        "wan": made.wan21(root / "wan"),
        "wan-image": made.wan21(root / "wan-image", in_channels=36),
        "wan22": made.wan22(root / "wan22"),
        "ltx": made.ltx(root / "ltx"),
        "cog": made.cogvideox(root / "cog"),
        "cog-image": made.cogvideox(
            root / "cog-image",
            "CogVideoXImageToVideoPipeline",
            in_channels=32,
            use_learned_positional_embeddings=True,
        ),
    }
    return {name: inspect(name, folder) for name, folder in folders.items()}


@pytest.fixture
def plan(versions: dict[str, ModelVersion]) -> Any:
    documents = {name: version.model_dump(mode="json") for name, version in versions.items()}

    def expand(model: str = "wan", gates: dict[str, Any] | None = None, **fields: Any) -> Any:
        assets = {path: Asset(path, "a" * 64, 10) for path in ("a.png", "b.png", "a.mp4", "x.safetensors")}
        document = {**documents[model], "gates": gates or {}} if model in documents else None
        context = ExpandContext(
            assets=assets, model=lambda name: document, model_names=lambda: sorted(documents)
        )
        return VIDEO.expand(VIDEO.parse({"model": model, "prompt": "a red square", **fields}), context)

    return expand


@pytest.fixture
def resolve(plan: Any) -> Any:
    def first(model: str = "wan", **fields: Any) -> Generation:
        return read_step(plan(model, **fields).steps[0].payload)

    return first


def refused(resolve: Any, pointer: str, message: str, model: str = "wan", **fields: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        resolve(model, **fields)
    by_pointer = {fault.pointer: fault.message for fault in caught.value.faults}
    assert message in by_pointer.get(pointer, ""), by_pointer


COUNTS = [
    # Wan: 4k + 1 frames, so 81 = 4 * 20 + 1 and 85 surround 82 and 84, 77 and 81 surround 80
    ("wan", 82, "nearest: 81 and 85"),
    ("wan", 84, "nearest: 81 and 85"),
    ("wan", 80, "nearest: 77 and 81"),
    ("wan", 0, "nearest: 1"),
    ("wan", -3, "nearest: 1"),
    ("wan", 5000, "nearest: 1025"),
    # LTX: 8k + 1, so 153 and 161
    ("ltx", 160, "nearest: 153 and 161"),
    ("cog", 48, "nearest: 45 and 49"),
]


@pytest.mark.parametrize(("model", "count", "nearest"), COUNTS)
def test_an_impossible_frame_count_is_refused_with_the_nearest(
    resolve: Any, model: str, count: int, nearest: str
) -> None:
    refused(resolve, "/spec/frames", nearest, model, frames=count)


SIZES = [
    ("wan", "830x480", "nearest: 816x480 and 832x480"),
    ("wan", "8x8", "nearest: 16x16 and 16x16"),
    ("ltx", "700x500", "nearest: 672x480 and 704x512"),
    ("cog-image", "704x480", "makes 720x480 only"),
    ("wan", "4096x4096", "nearest: 1440x1440"),
    ("wan", "17000x16", "not possible"),
]


@pytest.mark.parametrize(("model", "size", "nearest"), SIZES)
def test_an_impossible_size_is_refused_with_the_nearest(
    resolve: Any, model: str, size: str, nearest: str
) -> None:
    fields = {"image": "a.png"} if model == "cog-image" else {}
    refused(resolve, "/spec/size", nearest, model, size=size, **fields)


def test_seconds_become_frames_only_where_a_count_fits(resolve: Any) -> None:
    # 5 s at 16 frames/s: 80 frames, and one more so that both ends count; 81 = 4 * 20 + 1
    assert resolve(seconds=5).frames == 81
    # 81 frames of 16 a second last 5.0625 s
    assert resolve(seconds=5.0625).frames == 81
    # 4 s of 24000/1001 are 95.9 frames: no whole number
    refused(resolve, "/spec/seconds", "nearest: 93 frames (3.8788", seconds=4, fps="24000/1001")
    refused(resolve, "/spec/seconds", "nearest: 77 frames (4.8125 s) and 81 frames (5.0625 s)", seconds=4.9)
    refused(resolve, "/spec/seconds", "frames or seconds", seconds=5, frames=81)
    assert resolve("ltx", seconds=6.4, fps="25").frames == 161


def test_presets_fill_what_is_left_out_and_nothing_else(resolve: Any) -> None:
    standard, draft, final = (resolve(preset=preset) for preset in ("standard", "draft", "final"))
    assert (standard.width, standard.height, standard.frames, standard.steps) == (832, 480, 81, 50)
    assert (draft.width, draft.height, draft.frames, draft.steps) == (480, 272, 33, 20)
    assert (final.width, final.height, final.frames, final.steps) == (832, 480, 81, 60)
    assert (standard.bits, draft.bits, final.bits) == (8, 8, 16)
    own = resolve(preset="draft", steps=7, size="832x480", frames=5, bits=16)
    assert (own.steps, own.width, own.frames, own.bits) == (7, 832, 5, 16)


def test_numbers_are_float32_on_a_cpu_and_the_models_own_on_a_gpu(resolve: Any) -> None:
    assert resolve().dtype == "float32"
    assert resolve(device="cuda").dtype == "bfloat16"
    assert resolve(dtype="bfloat16").dtype == "bfloat16"


def test_the_inputs_say_the_task(resolve: Any) -> None:
    assert resolve().task == "t2v"
    film = resolve(video="a.mp4", strength=0.5)
    assert (film.task, film.model.pipeline_class, film.strength) == ("v2v", "WanVideoToVideoPipeline", 0.5)
    image = resolve("wan-image", image="a.png")
    assert (image.task, image.model.pipeline_class) == ("i2v", "WanImageToVideoPipeline")
    assert resolve("wan-image", image="a.png", last_image="b.png").task == "flf2v"
    refused(resolve, "/spec/model", "does not do t2v; it does i2v (image), flf2v (last_image)", "wan-image")
    refused(resolve, "/spec/image", "does not do i2v; it does t2v (prompt), v2v (video)", image="a.png")
    refused(resolve, "/spec/task", "those of t2v", task="i2v")
    refused(resolve, "/spec/last_image", "needs image", last_image="b.png")
    refused(resolve, "/spec/strength", "video to video", strength=0.5)
    refused(resolve, "/spec/strength", "leaves no step; at least 0.1", video="a.mp4", strength=0.05, steps=10)
    refused(resolve, "/spec/video", "attach it", video="other.mp4")


def test_two_experts_have_a_second_guidance_and_loras_of_their_own(resolve: Any) -> None:
    found = resolve("wan22", guidance_2=2.5)
    assert (found.guidance, found.guidance_2, found.model.facts.boundary_ratio) == (4.0, 2.5, 0.875)
    low = {"path": "x.safetensors", "expert": "low_noise", "weight": 0.5}
    assert resolve("wan22", loras=[low]).loras[0].expert == "low_noise"
    refused(resolve, "/spec/guidance_2", "one expert", guidance_2=2.5)
    refused(resolve, "/spec/loras/0/expert", "one expert", loras=[low])
    refused(resolve, "/spec/loras/0/path", "other formats can run code", loras=[{"path": "x.ckpt"}])
    refused(resolve, "/spec/loras", "twice", "wan22", loras=[low, low])


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("wan", {"scheduler": "cogvideox_dpm"}, "/spec/scheduler", "unipc, dpmpp_2m"),
    ("ltx", {"flow_shift": 3.0}, "/spec/flow_shift", "leave it out"),
    ("ltx", {"dtype": "float16"}, "/spec/dtype", "bfloat16, float32"),
    ("ltx", {"attention": "flash", "device": "cuda"}, "/spec/attention", "native, cudnn"),
    ("wan", {"attention": "cudnn"}, "/spec/attention", "needs an NVIDIA GPU"),
    ("wan", {"offload": "model"}, "/spec/offload", "host memory anyway"),
    ("wan", {"quantisation": "fp8", "untested": True}, "/spec/quantisation", "take int8"),
    ("cog", {"gpus": 2, "device": "cuda"}, "/spec/gpus", "no context-parallel plan"),
    ("ltx", {"gpus": 2, "device": "cuda", "gang": "guidance"}, "/spec/gang", "one batch"),
    ("cog", {"max_sequence_length": 100}, "/spec/max_sequence_length", "nearest: 226"),
    ("wan", {"max_sequence_length": 513}, "/spec/max_sequence_length", "nearest: 512"),
    ("ltx", {"cache": {"kind": "pyramid", "interval": 2}}, "/spec/cache/kind", "first_block, taylorseer"),
    ("wan", {"cache": {"kind": "first_block", "interval": 2}}, "/spec/cache/interval", "it takes threshold"),
    ("wan", {"cache": {"kind": "schedule"}}, "/spec/cache/skip", "step numbers to skip"),
    ("wan", {"cache": {"kind": "schedule", "skip": [50]}}, "/spec/cache/skip", "which are 0 to 49"),
    ("wan", {"prompt": "x" * 100_000}, "/spec/prompt", "at most 10000 characters"),
    ("wan", {"prompt": " \n "}, "/spec/prompt", "blank"),
    ("wan", {"seeds": [3, 3]}, "/spec/seeds", "twice"),
    ("wan", {"seeds": [2**63]}, "/spec/seeds/0", "9223372036854775807"),
    ("nowhere", {}, "/spec/model", "it has cog, cog-image, ltx"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "fields", "pointer", "message"), REFUSED)
def test_what_a_model_cannot_do_names_the_field_and_the_way_out(
    resolve: Any, model: str, fields: dict[str, Any], pointer: str, message: str
) -> None:
    refused(resolve, pointer, message, model, **fields)


def test_all_faults_come_in_one_answer(resolve: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        resolve(frames=80, size="830x480", scheduler="cogvideox_ddim")
    assert {fault.pointer for fault in caught.value.faults} == {
        "/spec/frames",
        "/spec/size",
        "/spec/scheduler",
    }


def test_a_lossy_choice_passes_by_its_measurement_alone(resolve: Any) -> None:
    choice = {"cache": {"kind": "schedule", "skip": [20, 10]}}
    key = "cache:schedule:50:10,20"
    measured = {
        "ssim": 0.96, "psnr_db": 31.0, "prompts": 4, "steps": 50, "width": 832, "height": 480, "frames": 81,
        "measured_on": "one H200",
    }  # fmt: skip
    refused(resolve, "/spec/cache", "was never measured", **choice)
    assert resolve(untested=True, **choice).cache.skip == [10, 20]
    assert resolve(gates={key: measured}, **choice).cache is not None
    refused(resolve, "/spec/cache", "SSIM 0.940", gates={key: measured | {"ssim": 0.94}}, **choice)
    # what failed stays refused, and a schedule of other steps is another choice
    refused(
        resolve,
        "/spec/cache",
        "PSNR 29.0",
        gates={key: measured | {"psnr_db": 29.0}},
        untested=True,
        **choice,
    )
    refused(resolve, "/spec/cache", "was never measured", gates={key: measured}, steps=40, **choice)


def test_a_cache_that_checkpoints_empty_is_emptied_once(resolve: Any) -> None:
    """Ten times a sample would leave it nothing to save."""
    first_block = {"kind": "first_block", "threshold": 0.1}
    assert resolve(steps=50).checkpoint_every == 5
    assert resolve(steps=50, cache=first_block, untested=True).checkpoint_every == 25
    assert resolve(steps=50, cache={"kind": "schedule", "skip": [9]}, untested=True).checkpoint_every == 5
    assert resolve(steps=50, cache=first_block, untested=True, checkpoint_every=10).checkpoint_every == 10


def test_every_seed_is_a_step_of_its_own_with_its_film(plan: Any) -> None:
    steps = plan(seeds=[7, 9], film={"formats": ["mp4", "mkv"], "name": "shot"}, preset="final").steps
    assert [step.name for step in steps] == ["seed-7", "seed-9", "film-7", "film-9"]
    assert [read_step(steps[index].payload).seed for index in (0, 1)] == [7, 9]
    made = steps[0]
    assert [str(task.frames) for task in made.tasks] == ["1-81"]
    assert (made.outputs[0].width, made.outputs[0].height, made.outputs[0].dtype) == (832, 480, "uint16")
    assert made.warm_key == steps[1].warm_key
    film = steps[2].payload
    assert (film["film"]["name"], film["film"]["fps"], film["film"]["quality"]) == ("shot-7", "16", "high")
    assert film["source"] == {"step": "seed-7", "output": "frame.png", "frames": "1-81"}
    assert (film["metadata"]["seed"], film["metadata"]["prompt"]) == (7, "a red square")
    assert steps[2].depends_on[0].step == "seed-7"
    alone = plan(film=None, device="cuda", gpus=2).steps
    assert [step.name for step in alone] == ["seed-0"]
    # what a node tells of its slots (workers.placement)
    pair = {"kind": "cuda", "gpus": ["GPU-a", "GPU-b"], "gpu_count": 2}
    assert fits(alone[0].requires, pair)
    assert not fits(alone[0].requires, pair | {"gpus": ["GPU-a"], "gpu_count": 1})
    assert not fits(alone[0].requires, {"kind": "cpu"})


def test_the_stored_spec_makes_the_same_plan_again(plan: Any) -> None:
    fields = {"model": "wan", "prompt": "a", "preset": "final", "seconds": 5, "seeds": [1]}
    spec = VIDEO.parse(fields)
    stored = spec.model_dump(mode="json", by_alias=True)
    assert VIDEO.parse(stored) == spec
    again = plan(**{key: value for key, value in stored.items() if key != "model"})
    first = plan(**{key: value for key, value in fields.items() if key != "model"})
    assert [step.payload for step in again.steps] == [step.payload for step in first.steps]
