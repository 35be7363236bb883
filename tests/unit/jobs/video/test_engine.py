"""The video engine on a CPU: right frames, exact resume, clean slots; real pipelines with tiny weights."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from farm.errors import CancelRequested, DeviceUnavailable, ParkRequested, PermanentFailure
from farm.frame_range import FrameRange
from jobs.video import checkpoint, payload
from jobs.video.engine import VideoEngine
from jobs.video.memory import OutOfMemory
from jobs.video.watch import NotFinite
from tests.kinds import tiny_pipelines
from tests.unit.jobs.local_host import LocalHost
from tests.unit.jobs.video.making import VideoHost, host, spec, task_of, version


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VideoEngine]:
    """One engine for the module, as a slot keeps it: each test finds what the one before left."""
    made = VideoEngine()
    made.open(host(tmp_path_factory.mktemp("open")))
    yield made
    made.close()


def make(engine: VideoEngine, at: VideoHost, given: dict[str, Any]) -> list[bytes]:
    """The frames' pixels of one run."""
    task = task_of(at, given)
    at.published.clear()
    engine.run(task, at)
    return [Image.open(found.files["frame.png"]).tobytes() for _, found in sorted(at.published.items())]


def found(at: VideoHost) -> dict[str, Any]:
    """What the last run said about itself."""
    return dict(at.results[at.step][-1])


def bare(name: str, given: dict[str, Any], kind: Any = None, **more: Any) -> torch.Tensor:
    """The same film by the plain script: (frames, 3, height, width) in 0 to 1."""
    import diffusers

    pipe = diffusers.DiffusionPipeline.from_pretrained(tiny_pipelines.folder(name), dtype=torch.float32)
    if kind is not None:
        parts = inspect.signature(kind.__init__).parameters
        pipe = kind(**{part: value for part, value in pipe.components.items() if part in parts})
    pipe.set_progress_bar_config(disable=True)
    width, height = map(int, given["size"].split("x"))
    generation = payload.read_step(_step(given))
    wishes = {
        "prompt": given["prompt"],
        "negative_prompt": given["negative_prompt"],
        "width": width,
        "height": height,
        "num_frames": given["frames"],
        "num_inference_steps": given["steps"],
        "guidance_scale": generation.guidance,
        "max_sequence_length": generation.max_sequence_length,
        "generator": torch.Generator().manual_seed(given["seeds"][0]),
        "output_type": "pt",
        **more,
    }
    if generation.guidance_2 is not None:
        wishes["guidance_scale_2"] = generation.guidance_2
    with torch.inference_mode():
        frames: torch.Tensor = pipe(**{k: v for k, v in wishes.items() if v is not None}).frames[0]
    return frames


def _step(given: dict[str, Any]) -> Any:
    from tests.unit.jobs.video.making import step_of

    assets = {given[field]: None for field in ("image", "video") if field in given}
    return step_of(given, assets=assets).payload


@pytest.mark.parametrize("name", ["wan", "ltx", "cogvideox", "skyreels"])
def test_frames_are_those_of_the_plain_script(name: str, engine: VideoEngine, tmp_path: Path) -> None:
    at, given = host(tmp_path), spec(name, seeds=[5])
    make(engine, at, given)
    expected = _rounded(bare(name, given))
    assert all(np.array_equal(_eight_bits(at, number), expected[number - 1]) for _, number in at.published)
    assert len(at.published) == given["frames"]


def test_an_image_and_a_video_are_what_the_film_starts_from(engine: VideoEngine, tmp_path: Path) -> None:
    """The image over EXIF orientation 6, which stands it upright once; the video as made by this farm."""
    import av
    from diffusers import WanVideoToVideoPipeline

    red, picture = (200, 30, 40), Image.new("RGB", (32, 32), (20, 60, 200))
    picture.paste(red, (0, 0, 16, 32))
    exif = Image.Exif()
    exif[274] = 6
    picture.save(tmp_path / "a.png", exif=exif)
    given = spec("wan22_image", image="a.png", seeds=[5])
    at = host(tmp_path / "image", files={"a.png": tmp_path / "a.png"})
    make(engine, at, given)
    expected = bare("wan22_image", given, image=picture.transpose(Image.Transpose.ROTATE_270))
    assert np.array_equal(_eight_bits(at, 4), _rounded(expected)[3])

    with av.open(tmp_path / "v.mkv", "w") as film:
        stream = film.add_stream("ffv1", rate=16)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "bgr0"
        for shade in range(5):
            frame = av.VideoFrame.from_image(Image.new("RGB", (32, 32), (shade * 50, 100, 50)))
            film.mux(stream.encode(frame))
        film.mux(stream.encode())
    given = spec("wan", video="v.mkv", strength=0.5, steps=6, seeds=[5])
    at = host(tmp_path / "video", park_at(2), files={"v.mkv": tmp_path / "v.mkv"})
    with pytest.raises(ParkRequested):
        make(engine, at, given)
    at.on_check = None
    make(engine, at, given)
    shades = [Image.new("RGB", (32, 32), (shade * 50, 100, 50)) for shade in range(5)]
    expected = bare("wan", given, WanVideoToVideoPipeline, video=shades, strength=0.5, num_frames=None)
    assert np.array_equal(_eight_bits(at, 4), _rounded(expected)[3])
    assert (found(at)["resumed_from"], found(at)["steps_computed"]) == (2, 1)


def _eight_bits(at: VideoHost, number: int) -> Any:
    return np.asarray(Image.open(at.published[at.step, number].files["frame.png"]))


def _rounded(frames: torch.Tensor) -> Any:
    return frames.permute(0, 2, 3, 1).mul(255).round().to(torch.uint8).numpy()


def test_sixteen_bits_are_more_than_eight(engine: VideoEngine, tmp_path: Path) -> None:
    at, given = host(tmp_path), spec("wan", bits=16)
    make(engine, at, given)
    expected = bare("wan", given | {"seeds": [0]}).permute(0, 2, 3, 1).mul(65535).round().to(torch.int32)
    data = at.published["seed-0", 3].files["frame.png"].read_bytes()
    assert np.array_equal(_sixteen_bits(data), expected[2].numpy())


def _sixteen_bits(data: bytes) -> Any:
    """Pillow reads 16-bit RGB as 8-bit; FFmpeg does not."""
    import io

    import av

    with av.open(io.BytesIO(data), format="png_pipe") as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb48le").astype(np.int32)


def test_settings_are_in_every_frame_and_beside_them(engine: VideoEngine, tmp_path: Path) -> None:
    at = host(tmp_path)
    make(engine, at, spec("wan", prompt="a red cat runs — über dem Meer", seeds=[11]))
    text = Image.open(at.published["seed-11", 1].files["frame.png"]).text  # type: ignore[attr-defined]
    settings = json.loads(text["generation"])
    assert (settings["prompt"], settings["seed"]) == ("a red cat runs — über dem Meer", 11)
    assert settings["model"] == f"wan@{version('wan').digest}"
    path, media_type, _ = at.artifacts["seed-11.json"]
    report = json.loads(path.read_text())
    assert media_type == "application/json"
    assert report["settings"] == settings
    assert report["environment"]["builds"]["torch"] == torch.__version__
    assert report["made"]["steps_computed"] == 4
    assert str(tiny_pipelines.folder("wan")) not in path.read_text()


def test_a_parked_sample_goes_on_to_the_same_frames_in_another_slot(
    engine: VideoEngine, tmp_path: Path
) -> None:
    given = spec("wan22", steps=6, checkpoint_every=100)
    whole = make(engine, host(tmp_path / "whole"), given)
    at = host(tmp_path / "parked", park_at(3))
    with pytest.raises(ParkRequested):
        make(engine, at, given)
    assert not at.published
    assert len(at.saves) == 1
    at.on_check = None
    other = VideoEngine()
    other.open(at)
    try:
        assert make(other, at, given) == whole
    finally:
        other.close()
    assert (found(at)["resumed_from"], found(at)["differences"]) == (3, [])
    assert found(at)["steps_computed"] == 3


def park_at(step: int, error: type[Exception] = ParkRequested) -> Any:
    def on_check(at: LocalHost) -> None:
        if at.progresses and at.progresses[-1][1].startswith(f"step {step} of"):
            raise error

    return on_check


def test_a_sample_parked_before_its_decoding_is_only_decoded(engine: VideoEngine, tmp_path: Path) -> None:
    given = spec("wan", steps=4)
    whole = make(engine, host(tmp_path / "whole"), given)
    at = host(tmp_path / "parked", park_at(4))
    with pytest.raises(ParkRequested):
        make(engine, at, given)
    at.on_check = None
    assert make(engine, at, given) == whole
    assert (found(at)["resumed_from"], found(at)["steps_computed"]) == (4, 0)


def test_frames_that_are_published_already_are_not_published_again(
    engine: VideoEngine, tmp_path: Path
) -> None:
    given = spec("wan")
    whole = make(engine, host(tmp_path / "whole"), given)
    at = host(tmp_path / "rest")
    task = dataclasses.replace(task_of(at, given), frames=FrameRange.parse("2,5"))
    engine.run(task, at)
    assert {number: _eight_bits(at, number).tobytes() for _, number in at.published} == {
        2: whole[1],
        5: whole[4],
    }


def test_a_pipeline_that_promises_no_resume_begins_again(engine: VideoEngine, tmp_path: Path) -> None:
    """The generic loader promises exact resume only where it was seen; elsewhere nothing is saved."""
    given = spec("skyreels")
    for promise, saves in (("exact", 1), ("restart", 0)):
        at = host(tmp_path / promise, park_at(2))
        task = task_of(at, given)
        task.step[payload.KEY]["model"]["facts"]["resume"] = promise
        with pytest.raises(ParkRequested):
            engine.run(task, at)
        assert len(at.saves) == saves


def test_a_cancelled_sample_leaves_no_frames_and_nothing_in_the_next(
    engine: VideoEngine, tmp_path: Path
) -> None:
    alone = make(engine, host(tmp_path / "alone"), spec("wan", seeds=[3]))
    at = host(tmp_path / "cancelled", park_at(2, CancelRequested))
    with pytest.raises(CancelRequested):
        make(engine, at, spec("wan", steps=8))
    assert not at.published
    assert not at.saves
    assert at.progresses[-1][1] == "step 2 of 8"
    assert make(engine, host(tmp_path / "next"), spec("wan", seeds=[3])) == alone


def test_another_place_is_told_in_the_job(engine: VideoEngine, tmp_path: Path) -> None:
    given = spec("wan")
    at = host(tmp_path, park_at(2))
    with pytest.raises(ParkRequested):
        make(engine, at, given)
    at.on_check = None
    task = task_of(at, given)
    engine.run(dataclasses.replace(task, device={"kind": "cpu", "threads": 2}), at)
    assert found(at)["differences"] == ["threads: 1 then, 2 now"]
    assert "threads: 1 then, 2 now" in at.log.text()


@pytest.mark.parametrize(
    "cache", [{"kind": "first_block", "threshold": 0.5}, {"kind": "schedule", "skip": [2, 4]}]
)
def test_cached_steps_are_the_same_after_a_resume(
    cache: dict[str, Any], engine: VideoEngine, tmp_path: Path
) -> None:
    given = spec("wan", steps=6, cache=cache, checkpoint_every=3)
    whole = make(engine, host(tmp_path / "whole"), given)
    assert whole != make(engine, host(tmp_path / "plain"), spec("wan", steps=6))
    at = host(tmp_path / "parked", park_at(3))
    with pytest.raises(ParkRequested):
        make(engine, at, given)
    at.on_check = None
    assert make(engine, at, given) == whole
    assert found(at)["resumed_from"] == 3


def test_a_cache_of_hooks_parks_at_its_checkpoint_steps_alone(engine: VideoEngine, tmp_path: Path) -> None:
    """After step 4 the hooks hold what no checkpoint does: the sample goes back to step 3 or the start."""
    at = host(tmp_path, park_at(4))
    given = spec("wan", steps=6, cache={"kind": "first_block", "threshold": 0.5}, checkpoint_every=3)
    with pytest.raises(ParkRequested):
        make(engine, at, given)
    assert all(checkpoint.read(path).step == 3 for path in at.saves)


@pytest.mark.parametrize("name", ["wan", "ltx", "cogvideox"])
def test_every_cache_of_a_family_takes_hold_and_is_gone_afterwards(
    name: str, engine: VideoEngine, tmp_path: Path
) -> None:
    given = spec(name, steps=8, checkpoint_every=100)
    plain = make(engine, host(tmp_path / "plain"), given)
    for kind in version(name).facts.record().caches:
        wish = {"first_block": {"threshold": 0.3}, "schedule": {"skip": [3, 5]}}.get(kind, {"interval": 2})
        cached = make(engine, host(tmp_path / kind), given | {"cache": {"kind": kind, **wish}})
        assert cached != plain, f"{kind} changes nothing on {name}"
    assert make(engine, host(tmp_path / "after"), given) == plain


def test_a_step_that_is_not_finite_is_named(engine: VideoEngine, tmp_path: Path) -> None:
    given = spec("wan", steps=4)
    make(engine, host(tmp_path / "warm"), given)
    loaded = engine.residency.get(payload.read_step(_step(given)), lambda: None)
    weight = loaded.pipeline.transformer.proj_out.bias
    kept = weight.clone()
    at = host(tmp_path / "bad")

    def spoil(at: LocalHost) -> None:
        if at.progresses and at.progresses[-1][1] == "step 2 of 4":
            weight.fill_(float("nan"))

    at.on_check = spoil
    try:
        with pytest.raises(NotFinite, match=r"^step 3: the latents are not finite"):
            make(engine, at, given)
    finally:
        weight.copy_(kept)
    assert not at.published


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from jobs.video import folder, pipelines
    from tests.unit.jobs.video.making import step_of

    copied = tiny_pipelines.copy("wan", tmp_path / "wan")
    path = copied / "transformer" / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    weights["blocks.1.ffn.net.2.weight"][3, 4] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    step = step_of(spec("wan"), {"wan": folder.inspect("wan", copied)})
    with pytest.raises(
        PermanentFailure, match=r"transformer.blocks.1.ffn.net.2.weight has 1 values that are not"
    ):
        pipelines.load(payload.read_step(step.payload))


def test_a_folder_that_lost_weights_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from jobs.video import folder, pipelines
    from tests.unit.jobs.video.making import step_of

    copied = tiny_pipelines.copy("wan", tmp_path / "wan")
    path = copied / "transformer" / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    del weights["proj_out.bias"]
    save_file(weights, path, metadata={"format": "pt"})
    generation = payload.read_step(step_of(spec("wan"), {"wan": folder.inspect("wan", copied)}).payload)
    with pytest.raises(PermanentFailure, match=r"transformer lacks the weights proj_out.bias"):
        pipelines.load(generation)
    path.unlink()
    with pytest.raises(PermanentFailure, match="is not what was added"):
        pipelines.load(generation)


def test_black_films_are_flagged(
    engine: VideoEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = spec("wan")
    make(engine, host(tmp_path / "warm"), given)
    vae = engine.residency.get(payload.read_step(_step(given)), lambda: None).pipeline.vae
    decode = vae.decode
    monkeypatch.setattr(vae, "decode", lambda *a, **k: (torch.full_like(decode(*a, **k)[0], -1.0),))
    at = host(tmp_path / "black")
    make(engine, at, given)
    assert found(at)["all_black"] is True
    assert "every frame is black" in at.log.text()


def test_out_of_memory_says_what_fits_and_leaves_the_slot_clean(
    engine: VideoEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = spec("wan", seeds=[3])
    alone = make(engine, host(tmp_path / "alone"), given)
    vae = engine.residency.get(payload.read_step(_step(given)), lambda: None).pipeline.vae

    def too_much(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with monkeypatch.context() as patch:
        patch.setattr(vae, "decode", too_much)
        at = host(tmp_path / "full")
        with pytest.raises(OutOfMemory) as caught:
            make(engine, at, given)
    text = caught.value.message
    assert "5 frames of 32x32 do not fit: at the decode stage" in text or "denoise stage" in text
    assert "set vae_tiling" in text or "smaller" in text
    assert not at.published
    assert make(engine, host(tmp_path / "next"), given) == alone


def test_a_prompt_is_encoded_once(engine: VideoEngine, tmp_path: Path) -> None:
    given = spec("wan", prompt="a blue boat on the sea")
    make(engine, host(tmp_path / "a"), given)
    encoder = engine.residency.get(payload.read_step(_step(given)), lambda: None).pipeline.text_encoder
    ran: list[int] = []
    handle = encoder.register_forward_hook(lambda *_: ran.append(1))
    try:
        make(engine, host(tmp_path / "b"), given | {"seeds": [9]})
        assert not ran
        make(engine, host(tmp_path / "c"), given | {"prompt": "a red boat on the sea"})
        assert ran
    finally:
        handle.remove()


def test_a_prompt_longer_than_the_encoder_sees_is_refused(engine: VideoEngine, tmp_path: Path) -> None:
    given = spec("wan", prompt="red cat " * 40, max_sequence_length=16)
    with pytest.raises(
        PermanentFailure, match=r"^/prompt: it has \d+ tokens, and the text encoder is shown 16"
    ):
        make(engine, host(tmp_path), given)


def test_a_gpu_that_is_not_there_is_missed_not_replaced(engine: VideoEngine, tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailable, match=r"^/device: cuda was asked for, and this slot owns no GPU"):
        make(engine, host(tmp_path), spec("wan", device="cuda"))


def test_blocks_are_compiled_while_loading_and_once_for_each_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What compiles is torch's matter: here the blocks only say when they first ran."""
    from diffusers import WanTransformer3DModel

    monkeypatch.setenv("FARM_COMPILE_CACHE", str(tmp_path / "kernels"))
    asked: list[Any] = []
    monkeypatch.setattr(
        WanTransformer3DModel, "compile_repeated_blocks", lambda model, **_: asked.append(model)
    )
    engine = VideoEngine()
    try:
        given = spec("wan", compile="blocks", seeds=[3])
        first = host(tmp_path / "first")
        frames = make(engine, first, given)
        assert frames == make(engine, host(tmp_path / "plain"), spec("wan", seeds=[3]))
        assert found(first)["compile_s"] > 0
        assert first.phases.count("load") == 2  # the model, and its compilation
        make(engine, again := host(tmp_path / "again"), given | {"seeds": [4]})
        assert "load" not in again.phases
        make(engine, larger := host(tmp_path / "larger"), given | {"size": "48x32"})
        assert found(larger)["compile_s"] > 0
        assert len(asked) == 1
        keys = [json.loads(path.read_text()) for path in (tmp_path / "kernels").glob("*/key.json")]
        assert sorted(key["shape"] for key in keys) == [[5, 32, 32], [5, 32, 48]]
        assert {key["torch"] for key in keys} == {torch.__version__}
    finally:
        engine.close()


def test_previews_are_pictures_of_the_work(engine: VideoEngine, tmp_path: Path) -> None:
    import io

    at = host(tmp_path)
    make(engine, at, spec("wan"))
    assert at.previews
    picture = Image.open(io.BytesIO(at.previews[0]))
    assert (picture.format, picture.size) == ("PNG", (320, 320))
    make(engine, silent := host(tmp_path / "off"), spec("wan", preview=False))
    assert not silent.previews


def test_the_slot_says_what_it_keeps(engine: VideoEngine, tmp_path: Path) -> None:
    at = host(tmp_path)
    make(engine, at, spec("wan"))
    assert at.warm == payload.read_step(_step(spec("wan"))).warm_key
    assert at.warm in engine.residency.keys
    assert at.reserved == 0 < at.peak_reserved
