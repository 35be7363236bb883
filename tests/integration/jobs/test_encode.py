"""Films from a job's own frames and from assets, read back with another reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("av", reason="needs stillframe[render]")

import av

from farm.errors import CancelRequested, PermanentFailure
from jobs.registry import kind
from tests.unit.jobs.local_host import LocalHost


def sequence(folder: Path, count: int, size: tuple[int, int] = (64, 48)) -> dict[str, Path]:
    """Frames that get brighter, so that their order can be seen in the film."""
    files = {}
    for number in range(1, count + 1):
        level = 20 + 200 * number // count
        path = folder / f"a.{number:04d}.png"
        Image.fromarray(np.full((size[1], size[0], 3), level, np.uint8)).save(path)
        files[f"shots/{path.name}"] = path
    return files


def spec(frames: str, **fields: Any) -> dict[str, Any]:
    return {"source": {"pattern": "shots/a.####.png", "frames": frames}, **fields}


def levels(path: Path) -> list[int]:
    """Mean luma of every decoded frame, full range."""
    with av.open(str(path)) as film:
        return [int(frame.to_ndarray(format="gray").mean()) for frame in film.decode(video=0)]


@pytest.mark.parametrize("fields", [{}, {"formats": ["webm"]}, {"formats": ["webm"], "codec": "av1"}])
def test_frames_come_in_order_and_are_counted(
    tmp_path: Path, make_host: Callable[..., LocalHost], fields: dict[str, Any]
) -> None:
    host = make_host(sequence(tmp_path, 12))
    host.run_job("encode", spec("1-12", **fields))
    ((name, (path, media_type, meta)),) = host.artifacts.items()
    assert media_type == f"video/{name.rpartition('.')[2]}"
    assert (meta["frames"], meta["fps"], meta["width"], meta["height"]) == (12, "24", 64, 48)
    assert meta["duration_s"] == pytest.approx(0.5, abs=0.002)
    found = levels(path)
    assert len(found) == 12
    assert found == sorted(found)
    assert found[-1] - found[0] > 120


def test_a_stepped_range_takes_only_its_frames(tmp_path: Path, make_host: Callable[..., LocalHost]) -> None:
    host = make_host(sequence(tmp_path, 9))
    host.run_job("encode", spec("1-9:4", fps="30000/1001"))
    meta = host.artifacts["film.mp4"][2]
    assert (meta["frames"], meta["fps"]) == (3, "30000/1001")


def test_an_odd_size_is_refused_with_the_nearest_and_padded_when_asked(
    tmp_path: Path, make_host: Callable[..., LocalHost]
) -> None:
    files = sequence(tmp_path, 3, (65, 49))
    with pytest.raises(PermanentFailure, match=r"65x49 is odd.* 64x48 and 66x50"):
        make_host(files).run_job("encode", spec("1-3"))
    host = make_host(files)
    host.run_job("encode", spec("1-3", odd_size="pad"))
    meta = host.artifacts["film.mp4"][2]
    assert (meta["width"], meta["height"], meta["odd_size"]) == (66, 50, "pad")
    assert (meta["source_width"], meta["source_height"]) == (65, 49)


def test_frames_of_two_sizes_are_refused_by_name(tmp_path: Path, make_host: Callable[..., LocalHost]) -> None:
    files = sequence(tmp_path, 3)
    Image.new("RGB", (32, 32)).save(tmp_path / "a.0003.png")
    with pytest.raises(
        PermanentFailure, match=r"frame 3 \(shots/a\.0003\.png\) is 32x32, but the film began"
    ):
        make_host(files).run_job("encode", spec("1-3"))


def test_a_transparent_frame_needs_a_background(tmp_path: Path, make_host: Callable[..., LocalHost]) -> None:
    files = sequence(tmp_path, 2)
    Image.new("RGBA", (64, 48), (255, 255, 255, 0)).save(tmp_path / "a.0002.png")
    with pytest.raises(PermanentFailure, match=r"frame 2 .*set background"):
        make_host(files).run_job("encode", spec("1-2"))
    host = make_host(files)
    host.run_job("encode", spec("1-2", background="#808080"))
    assert abs(levels(host.artifacts["film.mp4"][0])[1] - 128) <= 3


def test_a_broken_frame_is_named(tmp_path: Path, make_host: Callable[..., LocalHost]) -> None:
    files = sequence(tmp_path, 3)
    (tmp_path / "a.0002.png").write_bytes(b"\x82\xff not a png")
    with pytest.raises(PermanentFailure, match=r"frame 2 \(shots/a\.0002\.png\): the file cannot be read"):
        make_host(files).run_job("encode", spec("1-3"))


def test_cancel_stops_between_frames_and_publishes_nothing(
    tmp_path: Path, make_host: Callable[..., LocalHost]
) -> None:
    def check(host: LocalHost) -> None:
        if host.checks > 3:
            raise CancelRequested()

    host = make_host(sequence(tmp_path, 9))
    host.on_check = check
    with pytest.raises(CancelRequested):
        host.run_job("encode", spec("1-9"))
    assert host.artifacts == {}


def test_the_film_of_a_render_job(host: LocalHost) -> None:
    pytest.importorskip("mitsuba", reason="needs stillframe[render]")
    host.run_job(
        "render",
        {
            "scene": "scene.xml", "frames": "1-6", "resolution": [32, 24], "variant": "scalar_rgb",
            "camera": {"type": "orbit", "elevation": 20, "distance": 6, "target": [0, 0, 0]},
            "outputs": ["png", "exr"],
            "film": {"formats": ["mp4", "webm"], "fps": "12", "output": "layers.exr"},
        },
    )  # fmt: skip
    for name in ("film.mp4", "film.webm"):
        meta = host.artifacts[name][2]
        assert (meta["frames"], meta["fps"]) == (6, "12")
        assert meta["duration_s"] == pytest.approx(0.5, abs=0.002)
    assert {result["film"] for result in host.results["film"]} == {"film.mp4", "film.webm"}


def test_a_missing_frame_of_a_step_is_named(host: LocalHost) -> None:
    parsed, plan = host.plan(
        "render", {"scene": "scene.xml", "frames": "1-3", "resolution": [32, 24], "film": {}}
    )
    list(host.tasks(parsed, plan.steps[0]))
    task = next(host.tasks(parsed, plan.steps[1]))
    with pytest.raises(PermanentFailure, match="has no frame 1"):
        kind("encode").create_engine().run(task, host)
