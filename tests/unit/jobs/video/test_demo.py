"""The demo's job: the tiny model at its own recorded settings, whatever the presets say."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.cli.demo import choose
from jobs.kind import ExpandContext
from jobs.registry import kind
from jobs.video import demo
from jobs.video.folder import inspect
from jobs.video.payload import read_step
from jobs.video.tiny.clips import ALL_WISHES
from jobs.video.tiny.model import Settings
from tests.kinds import model_folders as made


def test_it_runs_at_the_settings_that_the_models_obedience_is_stated_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = made.wan21(tmp_path / "weights", rope_max_seq_len=64)
    recorded = Settings(guidance=2.5, steps=12)
    recorded.write(weights)
    monkeypatch.setattr(demo, "WEIGHTS", weights)
    assert demo.available()
    ((name, folder),) = demo.models().items()
    document = inspect(name, folder).model_dump(mode="json")
    video = kind("video")
    for preset in ("standard", "draft"):
        spec = video.parse(demo.spec() | {"preset": preset})
        plan = video.expand(spec, ExpandContext(model=lambda wanted: document if wanted == name else None))
        made_of = read_step(plan.steps[0].payload)
        assert (made_of.width, made_of.height, made_of.frames) == (64, 64, 17)
        assert (made_of.guidance, made_of.fps, made_of.dtype) == (2.5, "8", "float32")
    # 12 steps as recorded; a draft takes two fifths of them, rounded up
    assert made_of.steps == 5
    place = made_of.seed
    # each wish's seed is its place, as in the obedience test
    assert ALL_WISHES[place].prompt == made_of.prompt


def test_without_the_weights_the_other_films_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "WEIGHTS", tmp_path)
    assert "video" not in [film.name for film in choose("all")]
    weights = made.wan21(tmp_path / "weights")
    monkeypatch.setattr(demo, "WEIGHTS", weights)
    chosen = [film.name for film in choose("all")]
    # the turntable comes last: its path is the demo's last line
    assert "video" in chosen and chosen[-1] == "render"
