"""The real .blend files: each is rendered, or refused with the right reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from farm.errors import DeviceUnavailable, InvalidSpec
from tests.integration.jobs.blender.conftest import REAL, Job

pytestmark = pytest.mark.skipif(
    not REAL.is_dir(), reason="the real .blend files are not beside the repository"
)
MakeJob = Callable[..., Job]
NAMES = [
    "00_slide_negative_frames", "01_linked_collection", "01_missing_textures", "02_suzanne",
    "03_animated_cube", "04_lights", "16_volume", "RobotExpressive", "collection_to_link",
]  # fmt: skip


def test_no_file_is_left_out() -> None:
    assert {path.stem for path in REAL.iterdir() if path.suffix != ".txt"} == {*NAMES, "Box"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("00_slide_negative_frames", "has no camera"),
        ("01_linked_collection", r"library 'collection_to_link\.blend' is missing"),
        ("01_missing_textures", r"image 'MissingTexture\.png' is missing"),
        ("02_suzanne", r"image '02_Suzanne_BaseColor\.png' is missing"),
        ("03_animated_cube", r"lies outside the job's files: '//\.\./pbr_node/glTF2\.blend'"),
        ("04_lights", "BLENDER_RENDER, does not exist in Blender 4.5"),
        ("16_volume", "has no camera"),
        ("RobotExpressive", "has no camera"),
        ("collection_to_link", "has no camera"),
    ],
)
def test_what_each_file_lacks_is_told(job: MakeJob, name: str, words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        job(REAL / f"{name}.blend").run()


@pytest.mark.parametrize("name", [*NAMES, "Box"])
def test_each_file_renders_once_its_lacks_are_answered(job: MakeJob, name: str) -> None:
    files = [REAL / ("Box.glb" if name == "Box" else f"{name}.blend")]
    if name == "01_linked_collection":
        files.append(REAL / "collection_to_link.blend")
    blender: dict[str, Any] = {"camera": "auto", "allow_missing": True, "engine": "cycles"}
    # a .glb is Mitsuba's where nothing is said
    one = job(*files, engine="blender", frames="1", samples=8, resolution=[160, 90], blender=blender)
    one.run()
    picture = np.asarray(Image.open(one.file(1)).convert("L"))
    # something is seen: the picture is not one flat colour
    assert picture.std() > 1.0, f"{name} shows nothing"


def test_frames_below_zero_are_rendered_under_their_numbers(job: MakeJob) -> None:
    blender = {"camera": "auto", "engine": "cycles"}
    one = job(
        REAL / "00_slide_negative_frames.blend",
        frames="-3,0",
        samples=1,
        resolution=[64, 36],
        blender=blender,
    )
    host = one.run()
    assert sorted(number for step, number in host.published if step == "render") == [-3, 0]


def test_eevee_is_proved_on_one_file(job: MakeJob) -> None:
    """Its passes too: their channels are a table of ours, as EEVEE tells them to nobody."""
    passes = [
        "z", "normal", "position", "vector", "mist", "diffuse_color", "glossy_direct", "emit", "environment",
        "ambient_occlusion", "shadow", "volume_direct", "transparent", "cryptomatte_object",
    ]  # fmt: skip
    blender = {"camera": "auto", "allow_missing": True, "engine": "eevee", "passes": passes}
    one = job(
        REAL / "RobotExpressive.blend",
        frames="1", samples=1, resolution=[96, 54], outputs=["png", "exr"], blender=blender,
    )  # fmt: skip
    try:
        host = one.run()
    except DeviceUnavailable as error:
        pytest.skip(error.message)
    assert np.asarray(Image.open(one.file(1)).convert("L")).std() > 1.0
    assert len(host.outputs["render"][1]["channels"]) == 4 + 1 + 3 + 3 + 4 + 1 + 3 * 7 + 4 + 12
