"""`farm submit video "a prompt" …`: what becomes of its options, and what is refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.cli.submit import from_source
from farm.errors import InvalidInput
from tests.kinds.model_folders import safetensors


def test_a_prompt_and_options_become_a_job(tmp_path: Path) -> None:
    (tmp_path / "First.PNG").write_bytes(b"x")
    lora = safetensors(tmp_path / "style.safetensors", {"a.lora_A.weight": (2, 4)})
    options = {
        "model": "wan", "frames": "17", "size": "64x64", "seeds": [1, 2],
        "film": ["mp4", "mkv"], "preset": "draft",
        "image": tmp_path / "First.PNG", "lora": [f"{lora}:0.5", str(lora)],
    }  # fmt: skip
    body, files = from_source("video", "a//b ./c  red square", options)
    assert body["name"] == "a//b ./c red square"
    assert body["spec"] == {
        "prompt": "a//b ./c  red square",
        "model": "wan",
        "preset": "draft",
        "size": "64x64",
        "seeds": [1, 2],
        "frames": 17,
        "film": {"formats": ["mp4", "mkv"]},
        "image": "inputs/image.png",
        "loras": [
            {"path": "loras/style.safetensors", "weight": 0.5},
            {"path": "loras/style.safetensors", "weight": 1.0},
        ],
    }
    assert files == {"inputs/image.png": tmp_path / "First.PNG", "loras/style.safetensors": lora}


def test_a_long_prompt_makes_a_short_name() -> None:
    body, _ = from_source("video", "word\n" * 40, {"model": "m", "seed": 7})
    # twelve words are 59 characters
    assert body["name"] == " ".join(["word"] * 12)
    assert body["spec"]["seeds"] == [7]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("video", {}, "--model NAME"),
        ("video", {"model": "m", "samples": 4}, "the short form of video has no --samples; it takes --model"),
        ("video", {"model": "m", "frames": "1-48"}, "takes how many"),
        ("video", {"model": "m", "image": Path("/nowhere.png")}, "there is no file"),
        ("video", {"model": "m", "lora": ["x.safetensors:strong"]}, "FILE:WEIGHT"),
        ("render", {"model": "m"}, "the short form of render has no --model"),
        ("encode", {"last_image": Path("a")}, "has no --last-image"),
    ],
)
def test_what_does_not_fit_is_refused(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        from_source(kind, "a.png", options)


def test_a_lora_that_is_cut_short_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    lora = safetensors(tmp_path / "style.safetensors", {"a.lora_A.weight": (2, 4)})
    lora.write_bytes(lora.read_bytes()[:-2])
    with pytest.raises(InvalidInput, match="was cut short"):
        from_source("video", "a", {"model": "m", "lora": [str(lora)]})
