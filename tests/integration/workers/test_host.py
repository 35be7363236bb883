"""What a host refuses, and what it does where no engine is needed to see it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from farm.errors import InvalidInput, PermanentFailure, TaskFailed, UnverifiedFrame
from farm.frame_range import FrameRange
from tests.integration.workers.shop import Shop, make_shop  # noqa: F401  a fixture
from tests.kinds.probe.engine import png
from workers.asset_folder import AssetFolder
from workers.frame_desk import FrameDesk
from workers.host import SlotHost


@pytest.fixture
def host(shop: Shop) -> Iterator[SlotHost]:
    """The host of a claimed task that makes frames 1 to 3."""
    job = shop.submit({"frames": 3})
    [task] = shop.world.claim(shop.ticket(job))
    desk = FrameDesk(shop.db, shop.bench.spool, lambda attempt: None)
    shop.bench.control.begin(task.serial)
    made = SlotHost(shop.bench, task, desk, lambda: AssetFolder(shop.bench.scratch / "a", {}, shop.store))
    yield made
    made.close()
    desk.drain()
    desk.close()


def _publish(host: SlotHost, number: int, path: Path | None = None, output: str = "probe.png") -> None:
    path = path or host.scratch / f"{number}.png"
    if not path.exists():
        path.write_bytes(png(1, 1, (1, 2, 3)))
    host.publish(number, {output: path}, started_at=time.time(), duration_s=0.1)


def test_only_the_tasks_own_frames_once_and_whole(host: SlotHost) -> None:
    with pytest.raises(TaskFailed, match=r"frame 9 is not one of this task's frames \(1-3\)"):
        _publish(host, 9)
    with pytest.raises(UnverifiedFrame, match=r"outputs are other\.png; declared were probe\.png"):
        _publish(host, 1, output="other.png")
    _publish(host, 1)
    with pytest.raises(TaskFailed, match="published before"):
        _publish(host, 1)
    assert host.missing_frames() == [2, 3]


def test_what_was_examined_is_what_is_published(host: SlotHost, shop: Shop) -> None:
    """Examined in another thread: refused there, or published later, but not with other bytes."""
    paths = {number: host.scratch / f"{number}.png" for number in (1, 2, 3)}
    for number, path in paths.items():
        path.write_bytes(png(1, 1, (number, 2, 3)))
    paths[3].write_bytes(png(2, 1, (1, 2, 3)))
    with ThreadPoolExecutor(1) as pool:
        for number in (1, 2):
            pool.submit(host.examine, number, {"probe.png": paths[number]}).result()
        with pytest.raises(UnverifiedFrame, match=r"frame 3: probe\.png: width is 2, declared was 1"):
            pool.submit(host.examine, 3, {"probe.png": paths[3]}).result()
    _publish(host, 1)
    # of the same size and kind: only the hash can tell
    paths[2].write_bytes(png(1, 1, (3, 2, 3)))
    with pytest.raises(UnverifiedFrame, match=r"frame 2: probe\.png: 2\.png was changed after"):
        _publish(host, 2)
    # and what failed in advance fails again
    with pytest.raises(UnverifiedFrame, match="frame 3"):
        _publish(host, 3)
    assert host.missing_frames() == [2, 3] and len(list(shop.store.iter_hashes())) == 1


def test_no_link_leads_out_of_scratch(host: SlotHost, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(png(1, 1, (9, 9, 9)))
    link = host.scratch / "1.png"
    link.symlink_to(secret)
    with pytest.raises(PermanentFailure, match="scratch"):
        _publish(host, 1)
    assert secret.exists()


def test_published_bytes_cannot_be_changed_through_a_file_left_behind(host: SlotHost, shop: Shop) -> None:
    path = host.scratch / "1.png"
    path.write_bytes(png(1, 1, (1, 2, 3)))
    other = host.scratch / "alias.png"
    other.hardlink_to(path)
    _publish(host, 1)
    other.chmod(0o600)
    other.write_bytes(b"changed")
    for sha256 in shop.store.iter_hashes():
        with shop.store.open(sha256) as reader:
            assert reader.read() == png(1, 1, (1, 2, 3))


def test_result_must_be_small_json(host: SlotHost) -> None:
    for bad in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises(PermanentFailure, match="not JSON"):
            host.result(bad)
    with pytest.raises(PermanentFailure, match="at most 1,000,000"):
        host.result({"x": "y" * 1_000_001})
    host.result({"x": [1]})
    assert host.found == {"x": [1]}


def test_preview_is_the_newest_png_and_goes_with_the_attempt(host: SlotHost, shop: Shop) -> None:
    folder = shop.bench.settings.previews
    first = png(2, 2, (1, 1, 1))
    host.preview(first)
    [path] = folder.iterdir()
    assert path.read_bytes() == first
    host.preview(png(2, 2, (2, 2, 2)))
    assert path.read_bytes() == first, "pictures that come too fast are dropped"
    time.sleep(0.3)
    with pytest.raises(InvalidInput, match="PNG"):
        host.preview(b"GIF89a")
    host.close()
    assert list(folder.iterdir()) == []


def test_missing_frames_of_another_step_are_named(host: SlotHost) -> None:
    with pytest.raises(PermanentFailure, match=r"step 'none' has no published 'a\.png' for 2 frames: 1, 2"):
        host.frames("none", "a.png", FrameRange.parse("1-2"))


def test_frames_of_a_job_before_this_one_can_be_read_and_of_no_other(shop: Shop) -> None:
    before, stranger = shop.submit({"frames": 2}), shop.submit({"frames": 1})
    for job in (before, stranger):
        shop.run(job)
    [task] = shop.world.claim(shop.ticket(shop.submit({"frames": 1}, after=[before])))
    desk = FrameDesk(shop.db, shop.bench.spool, lambda attempt: None)
    shop.bench.control.begin(task.serial)
    made = SlotHost(shop.bench, task, desk, lambda: AssetFolder(shop.bench.scratch / "a", {}, shop.store))
    try:
        assert [f.number for f in made.frames("probe", "probe.png", job=before)] == [1, 2]
        assert made.frames("probe", "probe.png", job=before)[0].path.read_bytes().startswith(b"\x89PNG")
        for call in (made.step_results, lambda step, job: made.frames(step, "probe.png", job=job)):
            with pytest.raises(PermanentFailure, match=f"does not come after {stranger}; name it in `after`"):
                call("probe", job=stranger)
    finally:
        made.close()
        desk.close()


def test_progress_and_notes_reach_the_agent(host: SlotHost, shop: Shop) -> None:
    before = shop.agent.read().progressed_at
    time.sleep(0.01)
    host.progress(1.7, "frame 2 of 3")
    reading = shop.agent.read()
    assert (reading.fraction, shop.agent.note()) == (1.0, "frame 2 of 3")
    assert reading.progressed_at > before


def test_declared_children_are_known_to_the_agent_while_they_count(host: SlotHost, shop: Shop) -> None:
    with host.frozen([41, 42]):
        assert shop.agent.read().groups == (41, 42)
        with host.frozen([41, 42, 43]):
            assert shop.agent.read().groups == (41, 42, 43)
        assert shop.agent.read().groups == (41, 42)
    assert shop.agent.read().groups == ()
