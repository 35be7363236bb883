"""`/v1/videos` as OpenAI's clients use it: the shapes that they read, over the farm's own jobs."""

from __future__ import annotations

import base64
import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from farm.ids import new_id
from farm.lifecycle import machines
from farm.records import ArtifactRecord, FrameFileRecord, FrameRecord
from jobs.video.folder import inspect
from jobs.video.models import body_of
from tests.integration.api.conftest import Farm
from tests.kinds import model_folders as made

SMALL = {"size": "64x48", "frames": 5, "fps": "8"}


def picture(shade: int = 90, size: tuple[int, int] = (64, 48)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def models(farm: Farm, tmp_path: Path) -> Farm:
    """A farm with a text model and an image model."""
    for name, folder in (
        ("wan", made.wan21(tmp_path / "a")),
        ("wan-i", made.wan21(tmp_path / "b", in_channels=36)),
    ):
        assert farm.call.post("/v1/models", json=body_of(inspect(name, folder))).status_code == 201
    return farm


def create(farm: Farm, status: int = 200, **fields: Any) -> dict[str, Any]:
    body = {"model": "wan", "prompt": "a red square", "project": "default", **SMALL, **fields}
    answer = farm.call.post("/v1/videos", json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def film(farm: Farm, video_id: str) -> bytes:
    """Play the slots: five frames and a film."""
    with farm.db.write() as conn:
        node_id = machines.register_node(conn, "n1", {"cpu": 2}, new_id("node"))
        slot_id = machines.register_slot(conn, node_id, "s1", ["video", "encode"], {"kind": "cpu"})
        machines.slot_ready(conn, slot_id, "inc1", 4711)
    task = farm.claim(slot_id, video_id)[0]
    frames = []
    for number in range(1, 6):
        sha256, size = farm.store.put_stream([picture(40 * number)])
        file = FrameFileRecord("frame.png", sha256, size, 64, 48, ["R", "G", "B"], "uint8", "srgb", "png")
        frames.append(FrameRecord(number, 1, [file], started_at=1_764_500_000.0, duration_s=0.1))
    farm.finish(slot_id, task, frames)
    data = b"film" * 500
    farm.store.put_stream([data])
    record = ArtifactRecord("film.mp4", hashlib.sha256(data).hexdigest(), len(data), "video/mp4")
    farm.finish(slot_id, farm.claim(slot_id, video_id)[0], artifacts=[record])
    return data


def test_a_video_goes_from_queued_to_its_film(models: Farm) -> None:
    made_video = create(models, seed=7, steps=3)
    video_id = made_video["id"]
    assert made_video == {
        "id": video_id, "object": "video", "model": made_video["model"], "status": "queued", "progress": 0,
        "prompt": "a red square", "seconds": "0.625", "size": "64x48", "created_at": made_video["created_at"],
        "completed_at": None, "expires_at": None, "error": None, "remixed_from_video_id": None,
    }  # fmt: skip
    assert made_video["model"].startswith("wan@") and isinstance(made_video["created_at"], int)
    job = models.call.get(f"/v1/jobs/{video_id}").json()
    assert (job["name"], job["spec"]["seeds"], job["spec"]["steps"]) == ("a red square", [7], 3)
    early = models.call.get(f"/v1/videos/{video_id}/content")
    assert early.status_code == 409 and "queued" in early.json()["detail"]
    assert models.call.delete(f"/v1/videos/{video_id}").status_code == 409

    data = film(models, video_id)
    done = models.call.get(f"/v1/videos/{video_id}").json()
    assert (done["status"], done["progress"]) == ("completed", 100)
    assert isinstance(done["completed_at"], int)
    whole = models.call.get(f"/v1/videos/{video_id}/content")
    assert (whole.content, whole.headers["content-type"]) == (data, "video/mp4")
    part = models.call.get(f"/v1/videos/{video_id}/content", headers={"Range": "bytes=4-7"})
    assert (part.status_code, part.content) == (206, b"film")
    still = Image.open(
        io.BytesIO(models.call.get(f"/v1/videos/{video_id}/content?variant=thumbnail").content)
    )
    # the middle one of five frames has 120 of red
    assert (still.size, abs(int(np.asarray(still)[20, 20, 0]) - 120) < 4) == ((64, 48), True)
    sheet = Image.open(
        io.BytesIO(models.call.get(f"/v1/videos/{video_id}/content?variant=spritesheet").content)
    )
    # five frames: three a row, two rows
    assert sheet.size == (192, 96)

    assert models.call.delete(f"/v1/videos/{video_id}").json() == {
        "id": video_id, "object": "video.deleted", "deleted": True,
    }  # fmt: skip
    assert models.call.get(f"/v1/videos/{video_id}").status_code == 404


def test_openai_clients_send_seconds_as_text_and_a_reference_as_a_file(models: Farm) -> None:
    # 4 s of 16 frames/s: 64 frames and one more, which is 4 * 16 + 1
    plain = create(models, seconds="4", size="1280x720", frames=None, fps=None)
    assert (plain["seconds"], plain["size"]) == ("4.0625", "1280x720")
    form = {
        "model": "wan-i",
        "prompt": "it moves",
        "size": "64x48",
        "seconds": "4",
        "seed": "3",
        "project": "default",
    }
    answer = models.call.post(
        "/v1/videos", data=form, files={"input_reference": ("../x.png", picture(), "image/png")}
    )
    assert answer.status_code == 200, answer.text
    job = models.call.get(f"/v1/jobs/{answer.json()['id']}").json()
    sha256 = hashlib.sha256(picture()).hexdigest()
    assert job["assets"] == {"inputs/image.png": sha256}
    assert (job["spec"]["image"], job["spec"]["seeds"]) == ("inputs/image.png", [3])
    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    for reference in ({"image_url": url}, {"file_id": sha256}):
        again = create(models, model="wan-i", input_reference=reference)
        assert models.call.get(f"/v1/jobs/{again['id']}").json()["assets"] == {"inputs/image.png": sha256}


def test_the_same_request_twice_makes_one_video(models: Farm) -> None:
    body = {"model": "wan", "prompt": "a", "project": "default", **SMALL}
    headers = {"Idempotency-Key": "one"}
    first = models.call.post("/v1/videos", json=body, headers=headers)
    second = models.call.post("/v1/videos", json=body, headers=headers)
    assert (first.json(), second.headers["idempotency-replayed"]) == (second.json(), "true")
    form = {"model": "wan-i", "prompt": "a", "project": "default", "size": "64x48"}
    ids = set()
    for _ in range(2):
        files = {"input_reference": ("a.png", picture(), "image/png")}
        answer = models.call.post("/v1/videos", data=form, files=files, headers={"Idempotency-Key": "two"})
        ids.add(answer.json()["id"])
    assert len(ids) == 1
    assert len(models.call.get("/v1/videos").json()["data"]) == 2


def test_videos_are_listed_page_by_page_both_ways(models: Farm) -> None:
    ids = [create(models, seed=seed)["id"] for seed in range(3)]
    models.submit()  # a job of another kind is no video
    page = models.call.get("/v1/videos", params={"limit": 2}).json()
    assert [video["id"] for video in page["data"]] == [ids[2], ids[1]]
    assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == (
        "list",
        ids[2],
        ids[1],
        True,
    )
    rest = models.call.get("/v1/videos", params={"limit": 2, "after": page["last_id"]}).json()
    assert ([video["id"] for video in rest["data"]], rest["has_more"]) == ([ids[0]], False)
    upwards = models.call.get("/v1/videos", params={"order": "asc", "after": ids[0]}).json()
    assert [video["id"] for video in upwards["data"]] == ids[1:]
    assert models.as_("read", project="other").get("/v1/videos").json()["data"] == []
    assert models.as_("read", project="other").get(f"/v1/videos/{ids[0]}").status_code == 404
    assert models.call.get("/v1/videos", params={"after": "job_nothing"}).status_code == 422


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"frames": 82}, "/frames", "81 and 85"),
    ({"frames": None, "seconds": "five"}, "/seconds", "no number"),
    ({"size": "830x480"}, "/size", "816x480 and 832x480"),
    ({"prompt": "x" * 100_000}, "/prompt", "at most 10000"),
    ({"prompt": 3}, "/prompt", "string"),
    ({"model": "sora-2"}, "/model", "it has wan, wan-i"),
    ({"model": None}, "/model", "this farm has wan, wan-i"),
    ({"quality": "hd"}, "/quality", "no such field"),
    ({"priority": 900}, "/priority", "100"),
    ({"seed": -1}, "/seed", "greater"),
    ({"input_reference": {"image_url": "http://169.254.169.254/a"}}, "/input_reference/image_url", "fetches"),
    ({"input_reference": {"image_url": "data:image/png;base64,%%%"}}, "/input_reference/image_url", "base64"),
    ({"input_reference": {"image_url": "data:;base64,aGVsbG8="}}, "/input_reference", "no PNG"),
    ({"input_reference": {"file_id": "0" * 64}}, "/input_reference/file_id", "no such file"),
    ({"input_reference": {}}, "/input_reference", "exactly one"),
]  # fmt: skip


def test_a_bad_field_is_named_as_the_caller_wrote_it(models: Farm) -> None:
    for fields, pointer, message in BAD:
        faults = create(models, status=422, **fields)["errors"]
        assert any(pointer == fault["pointer"] and message in fault["message"] for fault in faults), faults
    # and where OpenAI's clients look
    error = create(models, status=422, frames=82)["error"]
    assert (error["param"], error["type"], "81 and 85" in error["message"]) == (
        "frames",
        "invalid-input",
        True,
    )
    assert models.call.get("/v1/videos/job_nothing").json()["error"]["code"] == "not-found"
    assert "error" not in models.call.get("/v1/jobs/job_nothing").json()
    assert models.call.get("/v1/videos").json()["data"] == []


def test_other_bodies_and_keys_are_refused(models: Farm) -> None:
    text = {"Content-Type": "text/plain"}
    assert models.call.post("/v1/videos", content=b"a", headers=text).status_code == 415
    json = {"Content-Type": "application/json"}
    for body in (b"", b"[]", b'{"prompt": "a", "prompt": "b"}', b'{"prompt": "a\\u0000"}'):
        assert models.call.post("/v1/videos", content=body, headers=json).status_code == 422
    broken = {"Content-Type": "multipart/form-data; boundary=x"}
    assert models.call.post("/v1/videos", content=b"--y", headers=broken).status_code == 422
    assert models.as_("read").post("/v1/videos", json={"prompt": "a"}).status_code == 403
    files = {"other": ("a.png", picture(), "image/png")}
    assert models.call.post("/v1/videos", data={"prompt": "a"}, files=files).status_code == 422


def test_a_preview_is_shown_while_it_lasts(models: Farm) -> None:
    video_id = create(models)["id"]
    task = models.call.get(f"/v1/jobs/{video_id}/tasks").json()["items"][0]["id"]
    address = f"/v1/tasks/{task}/preview"
    assert models.call.get(address).status_code == 204
    path = models.settings.previews / f"{task}.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(picture(10))
    first = models.call.get(address)
    assert (first.content, first.headers["content-type"]) == (picture(10), "image/png")
    same = {"If-None-Match": first.headers["etag"]}
    assert models.call.get(address, headers=same).status_code == 304
    fresh = path.with_suffix(".part")
    fresh.write_bytes(picture(20))
    fresh.replace(path)
    assert models.call.get(address, headers=same).content == picture(20)
    assert models.as_("read", project="other").get(address).status_code == 404


def test_an_attachment_that_cannot_serve_is_refused_at_the_door(models: Farm, tmp_path: Path) -> None:
    def submit(model: str, path: str, data: bytes, **fields: Any) -> Any:
        spec = {"model": model, "prompt": "a", "size": "64x48", "frames": 5, **fields}
        body = {"kind": "video", "name": "f", "project": "default", "spec": spec}
        return models.call.post("/v1/jobs", json={**body, "assets": {path: models.upload(data)}})

    wide = submit("wan-i", "a.png", picture(size=(96, 48)), image="a.png").json()["errors"]
    assert [(f["pointer"], "set fit to crop" in f["message"]) for f in wide] == [("/spec/image", True)]
    assert submit("wan-i", "a.png", picture(size=(96, 48)), image="a.png", fit="crop").status_code == 201
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.new("RGB", (48, 64)).save(buffer, "JPEG", exif=exif)
    # stored 48x64, shown 64x48
    assert submit("wan-i", "a.jpg", buffer.getvalue(), image="a.jpg").status_code == 201
    assert "cannot be read" in submit("wan-i", "a.png", b"no picture", image="a.png").json()["detail"]

    def lora(width: int, block: int = 0, name: str = "blocks") -> bytes:
        base = f"transformer.{name}.{block}.attn1.to_q"
        pair = {f"{base}.lora_A.weight": (4, width), f"{base}.lora_B.weight": (width, 4)}
        return made.safetensors(tmp_path / "l.safetensors", pair).read_bytes()

    def with_lora(data: bytes) -> Any:
        return submit("wan", "l.safetensors", data, loras=[{"path": "l.safetensors"}])

    # Wan 2.1 1.3B: 30 blocks of 1,536 channels
    assert with_lora(lora(1536, 29)).status_code == 201
    for data, message in (
        (lora(5120), "reads 5120 channels, and this one has 1536"),
        (lora(1536, 39), "it changes block 39, and this one has 30"),
        (lora(2048, name="transformer_blocks"), "is a LoRA for LTX, CogVideoX"),
        (lora(1536)[:-1], "was cut short"),
        (made.safetensors(tmp_path / "m.safetensors", {"a.weight": (2, 2)}).read_bytes(), "is no LoRA"),
    ):
        fault = with_lora(data).json()["errors"][0]
        assert fault["pointer"] == "/spec/loras/0/path" and message in fault["message"], fault
