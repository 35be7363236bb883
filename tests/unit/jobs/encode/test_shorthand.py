"""The options of ``farm submit`` that kinds with frames of their own share."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.errors import InvalidInput
from jobs.encode.shorthand import outputs_and_film
from jobs.nerf import shorthand as nerf
from jobs.render import shorthand as render


def test_formats_become_outputs_and_a_film_keeps_its_rate() -> None:
    assert outputs_and_film({}) == {}
    assert outputs_and_film({"formats": ("png", "exr")}) == {"outputs": ["png", "exr"]}
    assert outputs_and_film({"film": ("mp4", "webm"), "fps": "24000/1001"}) == {
        "film": {"formats": ["mp4", "webm"], "fps": "24000/1001"}
    }


def test_a_rate_without_a_film_is_refused_for_every_kind_that_films(tmp_path: Path) -> None:
    scene, film = tmp_path / "a.usdz", tmp_path / "a.mp4"
    for path in (scene, film):
        path.write_bytes(b"x")
    for build, source in ((render.build, scene), (nerf.build, film)):
        with pytest.raises(InvalidInput, match="--fps is the film's"):
            build(source, {"fps": "25"})
        spec, _ = build(source, {"fps": "25", "film": ("mp4",), "formats": ("png",)})
        assert spec["film"] == {"formats": ["mp4"], "fps": "25"}
        assert spec["outputs"] == ["png"]
