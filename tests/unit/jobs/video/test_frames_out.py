"""Frames on their way out: rounding, the ring, the children that write files."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from farm.errors import CancelRequested, TaskFailed
from jobs.video.frames_out import FramesOut, to_integers


@pytest.fixture
def out() -> Iterator[FramesOut]:
    made = FramesOut(2)
    yield made
    made.close()


def test_values_are_rounded_to_the_nearest_level() -> None:
    values = (
        torch.tensor([0.0, 0.4 / 255, 0.6 / 255, 0.5, 1.0, 1.5, -1.0]).view(7, 1, 1, 1).expand(7, 3, 2, 2)
    )
    assert to_integers(values, 8)[:, 0, 0, 0].tolist() == [0, 0, 1, 128, 255, 255, 0]
    assert to_integers(values, 16)[3:, 0, 0, 0].tolist() == [32768, 65535, 65535, 0]


@pytest.mark.parametrize(("width", "pace"), [(32, "0"), (37, "0"), (37, "100000000")])
def test_more_frames_than_the_ring_holds_come_out_in_order(
    width: int, pace: str, out: FramesOut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STILLFRAME_COPY_BYTES_PER_S", pace)
    frames = torch.rand(61, 3, 16, width, generator=torch.Generator().manual_seed(0))
    wanted = [index for index in range(61) if index != 30]
    order: list[int] = []
    out.prepare(width, 16, 8, "cpu")

    def written(index: int, path: Path) -> None:
        order.append(index)
        expected = (frames[index].permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()
        assert np.array_equal(np.asarray(Image.open(path)), expected)
        path.unlink()

    text = {"generation": '{"prompt": "über"}'}
    out.write(frames, 8, lambda index: tmp_path / f"{index}.png", text, wanted, written)
    assert order == wanted


def test_a_cancel_in_the_middle_leaves_a_way_out_that_works(out: FramesOut, tmp_path: Path) -> None:
    frames = torch.rand(61, 3, 8, 8)
    out.prepare(8, 8, 8, "cpu")
    seen: list[int] = []

    def check() -> None:
        if seen:
            raise CancelRequested

    with pytest.raises(CancelRequested):
        out.write(
            frames,
            8,
            lambda i: tmp_path / f"a{i}.png",
            {},
            list(range(61)),
            lambda i, _: seen.append(i),
            check,
        )
    out.prepare(8, 8, 8, "cpu")
    again: list[int] = []
    out.write(frames, 8, lambda i: tmp_path / f"b{i}.png", {}, [0, 60], lambda i, _: again.append(i))
    assert len(seen) < 61
    assert again == [0, 60]


def test_a_child_that_dies_fails_the_film_and_is_replaced(out: FramesOut, tmp_path: Path) -> None:
    frames = torch.rand(3, 3, 8, 8)
    out.prepare(8, 8, 8, "cpu")
    for pid in out.pids:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(TaskFailed, match="a frame encoder has died"):
        out.write(frames, 8, lambda i: tmp_path / f"a{i}.png", {}, [0, 1, 2], lambda i, p: None)
    out.prepare(8, 8, 8, "cpu")
    done: list[int] = []
    out.write(frames, 8, lambda i: tmp_path / f"b{i}.png", {}, [0, 1, 2], lambda i, p: done.append(i))
    assert done == [0, 1, 2]
