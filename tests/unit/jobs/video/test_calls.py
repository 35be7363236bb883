"""What each family's pipeline is called with for the same wishes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("diffusers", reason="needs stillframe[video]")

from jobs.kind import Asset, ExpandContext
from jobs.registry import kind
from jobs.video.calls import arguments
from jobs.video.folder import inspect
from jobs.video.payload import Generation, read_step
from tests.kinds import model_folders as made

PICTURE = Image.new("RGB", (64, 64))


def generation(folder: Path, **fields: Any) -> Generation:
    document = inspect("m", folder).model_dump(mode="json")
    assets = {path: Asset(path, "0" * 64, 1) for path in ("a.png", "b.png", "a.mp4")}
    video = kind("video")
    spec = video.parse({"model": "m", "prompt": "a fox", "size": "64x64", **fields})
    context = ExpandContext(assets=assets, model=lambda name: document)
    return read_step(video.expand(spec, context).steps[0].payload)


def call(wanted: Generation, **pictures: Any) -> dict[str, Any]:
    """The arguments for the pipeline's class; no model is loaded."""
    diffusers = pytest.importorskip("diffusers")
    view = object.__new__(getattr(diffusers, wanted.model.pipeline_class))
    return arguments(view, wanted, "generator", pictures)


def test_two_experts_get_their_own_guidance(tmp_path: Path) -> None:
    given = call(generation(tmp := made.wan22(tmp_path / "m"), guidance_2=2.0, frames=9))
    assert (given["guidance_scale"], given["guidance_scale_2"], given["num_frames"]) == (4.0, 2.0, 9)
    assert "strength" not in given and tmp.is_dir()


def test_ltx_is_told_the_frame_rate_and_how_to_decode(tmp_path: Path) -> None:
    folder = made.ltx(tmp_path / "m", "LTXConditionPipeline", timestep_conditioning=True)
    given = call(generation(folder, frames=17, fps="30000/1001"))
    assert (given["decode_timestep"], given["decode_noise_scale"]) == (0.05, 0.025)
    assert given["frame_rate"] == pytest.approx(29.97003)
    plain = call(generation(made.ltx(tmp_path / "old"), frames=17))
    assert "decode_timestep" not in plain and plain["frame_rate"] == 25


def test_what_is_kept_of_a_video_is_what_strength_leaves(tmp_path: Path) -> None:
    fields = {"video": "a.mp4", "frames": 9, "strength": 0.7}
    wan = call(generation(made.wan21(tmp_path / "wan"), **fields), video=[PICTURE] * 9)
    assert (wan["strength"], len(wan["video"])) == (0.7, 9)
    ltx = call(generation(made.ltx(tmp_path / "ltx", "LTXConditionPipeline"), **fields), video=[PICTURE] * 9)
    assert "strength" not in ltx
    (condition,) = ltx["conditions"]
    assert condition.strength == pytest.approx(0.3)
    assert (len(condition.video), condition.frame_index) == (9, 0)


def test_a_last_image_stands_at_the_last_group_of_latent_frames(tmp_path: Path) -> None:
    folder = made.ltx(tmp_path / "m", "LTXConditionPipeline")
    wanted = generation(folder, image="a.png", last_image="b.png", frames=25)
    conditions = call(wanted, image=PICTURE, last_image=PICTURE)["conditions"]
    assert [(one.frame_index, one.strength) for one in conditions] == [(0, 1.0), (24, 1.0)]
