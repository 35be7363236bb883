"""Frames, files, thumbnails, takes, artifacts, steps, tasks and attempts."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from farm.records import ArtifactRecord
from farm.states import AttemptState
from tests.integration.api.conftest import Farm


@pytest.fixture
def half_done(farm: Farm) -> dict[str, Any]:
    """A job of two tasks with two frames each; the first task is done."""
    _, slot_id = farm.slot()
    job = farm.submit(name="shot 10")
    task = farm.claim(slot_id, job["id"])[0]
    farm.finish(slot_id, task, [farm.picture(1), farm.picture(2)])
    return {**job, "slot_id": slot_id, "step_id": job["steps"][0]["id"]}


def items(farm: Farm, path: str, **filters: Any) -> list[dict[str, Any]]:
    answer = farm.call.get(path, params=filters)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


def test_frames_are_listed_with_their_states_and_files(farm: Farm, half_done: dict[str, Any]) -> None:
    path = f"/v1/jobs/{half_done['id']}/frames"
    frames = items(farm, path)
    assert [(f["number"], f["take"], f["state"], f["step"]) for f in frames] == [
        (1, 1, "published", "probe"), (2, 1, "published", "probe"),
        (3, 1, "pending", "probe"), (4, 1, "pending", "probe"),
    ]  # fmt: skip
    file = frames[0]["files"][0]
    assert (file["output"], file["width"], file["height"], file["channels"]) == (
        "probe.png",
        64,
        36,
        ["R", "G", "B"],
    )
    assert frames[2]["files"] == []
    assert frames[2]["thumbnail_url"] is None
    assert [f["number"] for f in items(farm, path, state="pending")] == [3, 4]
    assert [f["number"] for f in items(farm, path, first=2, last=3)] == [2, 3]
    assert items(farm, path, take=2) == []
    assert len(items(farm, path, current="true")) == 4
    assert len(items(farm, path, step="probe")) == 4
    assert farm.call.get(path, params={"step": "other"}).status_code == 404
    assert items(farm, f"/v1/steps/{half_done['step_id']}/frames") == frames
    page = farm.call.get(path, params={"limit": 3}).json()
    rest = farm.call.get(path, params={"limit": 3, "cursor": page["next"]}).json()
    assert page["items"] + rest["items"] == frames
    assert rest["next"] is None


def test_a_frame_file_is_downloaded_whole_and_in_ranges(farm: Farm, half_done: dict[str, Any]) -> None:
    frame = items(farm, f"/v1/jobs/{half_done['id']}/frames")[0]
    file = frame["files"][0]
    whole = farm.call.get(file["url"])
    assert hashlib.sha256(whole.content).hexdigest() == file["sha256"]
    assert whole.headers["content-type"] == "image/png"
    assert whole.headers["content-disposition"].startswith('inline; filename="shot 10.probe.0001.png"')
    assert whole.headers["etag"] == f'"{file["sha256"]}"'
    part = farm.call.get(file["url"], headers={"Range": "bytes=-8"})
    assert (part.status_code, part.content) == (206, whole.content[-8:])
    saved = farm.call.get(file["url"], params={"download": "true"})
    assert saved.headers["content-disposition"].startswith("attachment")
    base = file["url"].rsplit("/", 1)[0]
    for path in (f"{base}/other.png", f"{base}/..%2f..%2fetc", base.replace("/1/1", "/1/3") + "/probe.png"):
        assert farm.call.get(path).status_code == 404
    assert farm.call.get(base.replace("/1/1", "/0/1")).status_code == 422


def test_a_thumbnail_is_a_small_picture_with_its_own_tag(farm: Farm, half_done: dict[str, Any]) -> None:
    frames = items(farm, f"/v1/jobs/{half_done['id']}/frames")
    answer = farm.call.get(frames[0]["thumbnail_url"], params={"size": 32})
    assert answer.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(answer.content)) as picture:
        assert picture.size == (32, 18)
        assert picture.convert("RGB").getpixel((5, 5)) == (3, 40, 128)
    again = farm.call.get(
        frames[0]["thumbnail_url"], params={"size": 32}, headers={"If-None-Match": answer.headers["etag"]}
    )
    assert again.status_code == 304
    jpeg = farm.call.get(frames[0]["thumbnail_url"], params={"format": "jpeg"})
    assert jpeg.headers["content-type"] == "image/jpeg"
    pending = f"/v1/frames/{half_done['step_id']}/1/3/thumbnail"
    assert farm.call.get(pending).status_code == 404
    assert farm.call.get(frames[0]["thumbnail_url"], params={"size": 5000}).status_code == 422


def test_a_retake_stands_beside_the_old_take_and_either_can_be_current(
    farm: Farm, half_done: dict[str, Any]
) -> None:
    job_id, step_id, slot_id = half_done["id"], half_done["step_id"], half_done["slot_id"]
    farm.finish(slot_id, farm.claim(slot_id, job_id)[0], [farm.picture(3), farm.picture(4)])
    before = items(farm, f"/v1/jobs/{job_id}/frames")
    made = farm.call.post(f"/v1/jobs/{job_id}/retake", json={"step": "probe", "frames": "2"})
    assert made.status_code == 201, made.text
    assert (made.json()["take"], made.json()["tasks"], made.json()["frames"]) == (2, 1, 1)
    assert farm.call.get(f"/v1/jobs/{job_id}").json()["state"] == "running"
    farm.finish(slot_id, farm.claim(slot_id, job_id)[0], [farm.picture(2, take=2)])
    current = items(farm, f"/v1/jobs/{job_id}/frames", current="true")
    assert [(f["number"], f["take"]) for f in current] == [(1, 1), (2, 2), (3, 1), (4, 1)]
    old = next(f for f in items(farm, f"/v1/jobs/{job_id}/frames") if (f["number"], f["take"]) == (2, 1))
    assert old["files"] == before[1]["files"]
    answer = farm.call.post(f"/v1/steps/{step_id}/current", json={"frames": "2", "take": 1})
    assert answer.json() == {"step_id": step_id, "take": 1, "frames": 1}
    current = items(farm, f"/v1/jobs/{job_id}/frames", current="true")
    assert {f["take"] for f in current} == {1}
    for body in ({"frames": "3", "take": 2}, {"frames": "1 2", "take": 1}, {"frames": "2", "take": 0}):
        assert farm.call.post(f"/v1/steps/{step_id}/current", json=body).status_code == 422
    for frames in ("99", "5-1", ""):
        answer = farm.call.post(f"/v1/steps/{step_id}/retake", json={"frames": frames})
        assert answer.status_code == 422
        assert answer.json()["errors"]
    assert farm.call.post(f"/v1/jobs/{job_id}/retake", json={"step": "no"}).status_code == 404


def test_tasks_and_attempts_are_listed_page_by_page(farm: Farm, half_done: dict[str, Any]) -> None:
    tasks = items(farm, f"/v1/jobs/{half_done['id']}/tasks")
    assert [(t["position"], t["state"], t["frames"], t["step"]) for t in tasks] == [
        (0, "done", "1-2", "probe"), (1, "ready", "3-4", "probe"),
    ]  # fmt: skip
    page = farm.call.get(f"/v1/steps/{half_done['step_id']}/tasks", params={"limit": 1}).json()
    rest = farm.call.get(
        f"/v1/steps/{half_done['step_id']}/tasks", params={"limit": 1, "cursor": page["next"]}
    ).json()
    assert page["items"] + rest["items"] == tasks
    assert items(farm, f"/v1/jobs/{half_done['id']}/tasks", state=["done", "failed"]) == tasks[:1]
    assert farm.call.get(f"/v1/tasks/{tasks[0]['id']}").json() == tasks[0]
    attempts = items(farm, f"/v1/jobs/{half_done['id']}/attempts")
    assert [(a["state"], a["number"], a["task_id"]) for a in attempts] == [("done", 1, tasks[0]["id"])]
    assert attempts == items(farm, f"/v1/tasks/{tasks[0]['id']}/attempts")
    assert farm.call.get(f"/v1/attempts/{attempts[0]['id']}").json() == attempts[0]
    assert items(farm, f"/v1/jobs/{half_done['id']}/attempts", state="failed") == []
    steps = items(farm, f"/v1/jobs/{half_done['id']}/steps")
    assert farm.call.get(f"/v1/steps/{steps[0]['id']}").json() == steps[0]
    assert (steps[0]["frames_done"], steps[0]["progress"], steps[0]["tasks"]["done"]) == (2, 0.5, 1)


def test_a_film_plays_in_the_page_and_a_report_is_only_saved(farm: Farm) -> None:
    _, slot_id = farm.slot()
    job = farm.submit(spec={"steps": [{"name": "probe", "tasks": 1}]})
    film, page = b"\0\0\0 ftypisom" * 1000, b"<script>alert(1)</script>"
    for data in (film, page):
        farm.store.put_stream([data])
    records = [
        ArtifactRecord("films/turntable.mp4", hashlib.sha256(film).hexdigest(), len(film), "video/mp4"),
        ArtifactRecord("report.html", hashlib.sha256(page).hexdigest(), len(page), "text/html"),
    ]
    farm.finish(slot_id, farm.claim(slot_id, job["id"])[0], artifacts=records, state=AttemptState.DONE)
    found = {a["name"]: a for a in items(farm, f"/v1/jobs/{job['id']}/artifacts")}
    assert found["films/turntable.mp4"]["step"] == "probe"
    played = farm.call.get(found["films/turntable.mp4"]["url"], headers={"Range": "bytes=0-99"})
    assert (played.status_code, played.content) == (206, film[:100])
    assert played.headers["content-type"] == "video/mp4"
    assert played.headers["content-disposition"].startswith('inline; filename="turntable.mp4"')
    saved = farm.call.get(found["report.html"]["url"])
    assert saved.content == page
    assert saved.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in saved.headers["content-security-policy"]
    assert farm.call.get(f"/v1/artifacts/{found['report.html']['id']}").json() == found["report.html"]


def test_multilayer_exr_has_a_thumbnail(farm: Farm) -> None:
    OpenEXR = pytest.importorskip("OpenEXR")
    from farm.records import FrameFileRecord, FrameRecord

    path = farm.settings.data / "layers.exr"
    ones = np.ones((9, 16), np.float32)
    OpenEXR.File(
        {"type": OpenEXR.scanlineimage}, {"R": ones * 9, "G": ones * 0, "B": ones * 0, "depth.Z": ones}
    ).write(str(path))
    sha256, size = farm.store.put_file(path)
    _, slot_id = farm.slot()
    job = farm.submit(spec={"steps": [{"name": "probe", "tasks": 1, "frames": 1}]})
    # the step declares probe.png, so the file is stored under that output with its real format
    file = FrameFileRecord("probe.png", sha256, size, 16, 9, ["R", "G", "B"], "float32", "linear", "exr")
    farm.finish(slot_id, farm.claim(slot_id, job["id"])[0], [FrameRecord(1, 1, [file], 1.0, 1.0)])
    frame = items(farm, f"/v1/jobs/{job['id']}/frames")[0]
    with Image.open(io.BytesIO(farm.call.get(frame["thumbnail_url"]).content)) as picture:
        assert picture.size == (16, 9)
        assert picture.getpixel((3, 3)) == (255, 0, 0)
