"""A gang of two ranks on a CPU, over gloo: the same film, all ranks or none."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from farm.errors import ParkRequested, PermanentFailure, TaskFailed
from jobs.video import gang_child, gang_choice, payload
from jobs.video.engine import VideoEngine
from tests.unit.jobs.local_host import LocalHost
from tests.unit.jobs.video.making import VideoHost, host, spec, step_of, task_of


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VideoEngine]:
    """One engine for the module: its gang is made once, and again where a test breaks it."""
    made = VideoEngine()
    made.open(host(tmp_path_factory.mktemp("open")))
    yield made
    made.close()


def make(engine: VideoEngine, at: VideoHost, size: str = "32x32", **wish: Any) -> list[Any]:
    """Frames of one run; a job may not ask for two CPUs, so the payload says it."""
    task = task_of(at, spec("wan", seeds=[5], size=size))
    task.step[payload.KEY].update(wish)  # type: ignore[index]
    engine.run(task, at)
    files = [found.files["frame.png"] for _, found in sorted(at.published.items())]
    return [np.asarray(Image.open(io.BytesIO(path.read_bytes()))).astype(int) for path in files]


@pytest.fixture(scope="module")
def alone(engine: VideoEngine, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The film of one process."""
    return make(engine, host(tmp_path_factory.mktemp("alone")))


def park_at(step: int) -> Any:
    def on_check(at: LocalHost) -> None:
        if at.progresses and at.progresses[-1][1].startswith(f"step {step} of"):
            raise ParkRequested

    return on_check


def test_the_guidance_split_gives_the_bits_of_one_device_and_survives_a_park(
    engine: VideoEngine, alone: list[Any], tmp_path: Path
) -> None:
    at = host(tmp_path / "two", park_at(2))
    with pytest.raises(ParkRequested):
        make(engine, at, gpus=2, gang="guidance")
    assert not at.published
    pids = engine._gang.pids if engine._gang else []
    assert set(pids) < set(at.frozen_pids)
    at.on_check = None
    # left to itself, the engine takes the same way, and the record says why
    assert np.array_equal(make(engine, at, gpus=2), alone)
    told = at.results["seed-5"][-1]["gang"]
    assert (told["gpus"], told["share"], told["why"][:13]) == (2, "guidance", "by arithmetic")
    assert at.results["seed-5"][-1]["resumed_from"] == 2
    assert engine._gang is not None and engine._gang.pids == pids, "the ranks did not stay"


def test_a_split_sequence_gives_the_same_film(engine: VideoEngine, alone: list[Any], tmp_path: Path) -> None:
    """Sums in another order: the bits may differ, the pictures not by more than a level."""
    split = make(engine, host(tmp_path / "two"), gpus=2, gang="ulysses")
    assert np.abs(np.array(split) - np.array(alone)).max() <= 1
    assert np.array_equal(make(engine, host(tmp_path / "again")), alone), "the split outlived its job"


def test_films_of_two_sizes_follow_each_other_in_one_gang(engine: VideoEngine, tmp_path: Path) -> None:
    first = make(engine, host(tmp_path / "small"), gpus=2)
    pids = engine._gang.pids if engine._gang else []
    wide = make(engine, host(tmp_path / "wide"), "48x32", gpus=2)
    assert engine._gang is not None and engine._gang.pids == pids
    assert (first[0].shape, wide[0].shape) == ((32, 32, 3), (32, 48, 3))
    assert np.array_equal(wide, make(engine, host(tmp_path / "alone"), "48x32"))


def test_what_a_rank_fails_of_is_what_the_sample_fails_of(
    engine: VideoEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = gang_child.request

    def broken(*args: Any) -> dict[str, Any]:
        asked = honest(*args)
        del asked["generation"]["prompt"]
        return asked

    monkeypatch.setattr(gang_child, "request", broken)
    with pytest.raises(TaskFailed, match=r"^rank 1 of the gang: ValidationError: (.|\n)*prompt"):
        make(engine, host(tmp_path / "two"), gpus=2)
    assert engine._gang is None


def test_a_rank_that_cannot_start_is_not_waited_for(tmp_path: Path) -> None:
    at = host(tmp_path)
    made = VideoEngine(rank_module="jobs.video.no_such_module")
    try:
        with pytest.raises(TaskFailed, match=r"^rank 1 of the gang did not start: it has died"):
            make(made, at, gpus=2)
    finally:
        made.close()


def test_a_rank_that_dies_fails_the_sample_and_leaves_a_slot_that_works(
    engine: VideoEngine, alone: list[Any], tmp_path: Path
) -> None:
    at = host(tmp_path / "two")

    def kill(at: LocalHost) -> None:
        if at.progresses and at.progresses[-1][1].startswith("step 2 of"):
            assert engine._gang is not None
            for pid in engine._gang.pids:
                os.kill(pid, signal.SIGKILL)

    at.on_check = kill
    with pytest.raises(TaskFailed, match=r"^rank 1 of the gang: it has died \(exit code -9\)"):
        make(engine, at, gpus=2, gang="guidance")
    assert not at.published
    assert engine._gang is None
    assert np.array_equal(make(engine, host(tmp_path / "next")), alone)


@pytest.mark.parametrize(
    ("name", "wish", "text"),
    [
        (
            "wan",
            {"gpus": 2, "gang": "guidance", "guidance": 1.0},
            r"^/gang: guidance 1 makes one",
        ),
        ("cogvideox", {"gpus": 2, "gang": "guidance"}, r"^/gang: CogVideoX shares no guidance on 2"),
        ("cogvideox", {"gpus": 2}, r"^/gpus: CogVideoX cannot split its sequence"),
    ],
)
def test_what_cannot_be_shared_is_refused(name: str, wish: dict[str, Any], text: str) -> None:
    generation = payload.read_step(step_of(spec(name)).payload).model_copy(update=wish)
    with pytest.raises(PermanentFailure, match=text):
        gang_choice.check(generation)
