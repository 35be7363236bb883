"""Models over REST, the client and the command line: versions, names, what a job gets, who may."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from api.cli.main import app
from farm.db import tables
from jobs.video.folder import inspect
from jobs.video.models import body_of
from tests.integration.api.conftest import Farm, Running
from tests.kinds import model_folders as made


def add(farm: Farm, name: str, folder: Path) -> dict[str, Any]:
    answer = farm.call.post("/v1/models", json=body_of(inspect(name, folder)))
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def submit(farm: Farm, model: str, **fields: Any) -> Any:
    body = {
        "kind": "video",
        "name": "film",
        "project": "default",
        "spec": {"model": model, "prompt": "a", **fields},
    }
    return farm.call.post("/v1/jobs", json=body)


def time_of(text: str) -> float:
    """Seconds since 1970 of a time of the API."""
    return datetime.fromisoformat(text).timestamp()


def digest_in(farm: Farm, job_id: str) -> str:
    """The model version in the payload of the job's first step."""
    steps = tables.steps.c
    query = sa.select(steps.payload).where(steps.job_id == job_id).order_by(steps.position)
    with farm.db.read() as conn:
        payload = conn.execute(query).scalars().first()
    return str(payload["generation"]["model"]["digest"])


def test_a_name_means_its_newest_version_and_jobs_keep_theirs(farm: Farm, tmp_path: Path) -> None:
    first = add(farm, "wan", made.wan21(tmp_path / "one"))
    assert (first["family"], first["resume"], first["current"]) == ("wan2.1", "exact", True)
    assert first["tasks"]["t2v"] == {"frames": "4k + 1", "least_frames": 1, "most_frames": 1025}
    job = submit(farm, "wan")
    assert job.status_code == 201, job.text
    second = add(farm, "wan", made.wan21(tmp_path / "two", num_layers=32))
    assert second["digest"] != first["digest"]
    listed = farm.call.get("/v1/models").json()["items"]
    assert [(one["name"], one["digest"]) for one in listed] == [("wan", second["digest"])]
    assert farm.call.get("/v1/models").json()["data"] == [
        {
            "id": "wan",
            "object": "model",
            "created": int(time_of(second["added_at"])),
            "owned_by": "stillframe",
        }
    ]
    every = farm.call.get("/v1/models", params={"versions": "true"}).json()["items"]
    assert {one["digest"]: one["current"] for one in every} == {
        first["digest"]: False,
        second["digest"]: True,
    }

    old = farm.call.get(f"/v1/models/wan@{first['digest'][:8]}").json()
    assert old["digest"] == first["digest"] and old["files"] == first["files"]
    assert digest_in(farm, job.json()["id"]) == first["digest"]
    pinned = submit(farm, f"wan@{first['digest'][:12]}").json()
    assert digest_in(farm, pinned["id"]) == first["digest"]

    assert farm.call.delete(f"/v1/models/wan@{second['digest']}").status_code == 409
    assert farm.call.delete(f"/v1/models/wan@{first['digest']}").status_code == 204
    assert submit(farm, f"wan@{first['digest'][:12]}").status_code == 422
    assert farm.call.delete("/v1/models/wan").status_code == 204
    refused = submit(farm, "wan").json()
    assert refused["errors"][0]["pointer"] == "/spec/model"
    assert "none yet" in refused["detail"]
    # the same files added again are the same version
    assert add(farm, "wan", tmp_path / "one")["digest"] == first["digest"]


def test_a_bad_count_is_answered_at_the_door_with_the_nearest(farm: Farm, tmp_path: Path) -> None:
    add(farm, "wan", made.wan21(tmp_path / "wan"))
    for count, nearest in ((82, "81 and 85"), (80, "77 and 81"), (0, "nearest: 1"), (-3, "nearest: 1")):
        answer = submit(farm, "wan", frames=count)
        assert answer.status_code == 422
        fault = answer.json()["errors"][0]
        assert fault["pointer"] == "/spec/frames" and nearest in fault["message"]
    checked = farm.call.post("/v1/jobs/validate", json={
        "kind": "video", "name": "f", "project": "default",
        "spec": {"model": "wan", "prompt": "a", "seeds": [1, 2]},
    }).json()  # fmt: skip
    assert [step["name"] for step in checked["steps"]] == ["seed-1", "seed-2", "film-1", "film-2"]
    assert (checked["tasks"], checked["frames"]) == (4, 162)


def test_only_what_is_safe_and_whole_is_taken(farm: Farm, tmp_path: Path) -> None:
    body = body_of(inspect("wan", made.wan21(tmp_path / "wan")))
    file = body["files"][0]
    bad: list[tuple[dict[str, Any], str]] = [
        ({"folder": "models/wan"}, "/folder"),
        (
            {"files": [*body["files"], {**file, "path": "../secret.json"}]},
            f"/files/{len(body['files'])}/path",
        ),
        ({"files": [*body["files"], {**file, "path": "run.py"}]}, f"/files/{len(body['files'])}/path"),
        ({"files": [one for one in body["files"] if not one["path"].endswith(".safetensors")]}, "/files"),
        ({"files": [file, *body["files"]]}, "/files"),
        ({"facts": body["facts"] | {"remote_code": True}}, "/remote_code"),
        ({"facts": body["facts"] | {"family": "mine"}}, "/facts/family"),
        ({"facts": body["facts"] | {"temporal": 0}}, "/facts/temporal"),
        ({"name": "Wan 2"}, "/name"),
    ]
    for change, pointer in bad:
        answer = farm.call.post("/v1/models", json=body | change)
        assert answer.status_code == 422, change
        assert pointer in {fault["pointer"] for fault in answer.json()["errors"]}, answer.text
    for scopes in (("read",), ("submit",), ("operate",)):
        assert farm.as_(*scopes).post("/v1/models", json=body).status_code == 403
    assert farm.as_("admin", project="other").post("/v1/models", json=body).status_code == 403
    assert farm.call.get("/v1/models").json()["items"] == []


def test_a_measured_choice_opens_or_shuts_the_door(farm: Farm, tmp_path: Path) -> None:
    add(farm, "wan", made.wan21(tmp_path / "wan"))
    cache = {"kind": "schedule", "skip": [12, 10]}
    assert "never measured" in submit(farm, "wan", cache=cache).json()["detail"]
    assert submit(farm, "wan", cache=cache, untested=True).status_code == 201
    figures = {
        "choice": "cache:schedule:50:10,12", "ssim": 0.97, "psnr_db": 33.5, "prompts": 4, "steps": 50,
        "width": 832, "height": 480, "frames": 81, "measured_on": "one H200",
    }  # fmt: skip
    kept = farm.call.put("/v1/models/wan/measurements", json=figures).json()["measured"]
    assert kept["cache:schedule:50:10,12"]["passed"] is True
    assert submit(farm, "wan", cache=cache).status_code == 201
    farm.call.put("/v1/models/wan/measurements", json=figures | {"ssim": 0.9})
    assert "SSIM 0.900" in submit(farm, "wan", cache=cache, untested=True).json()["detail"]


def test_the_command_line_adds_lists_checks_and_removes(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_URL", running.url)
    monkeypatch.setenv("FARM_KEY", running.secret)
    folder = made.wan22(tmp_path / "wan22")

    def farm(*words: str) -> Any:
        return CliRunner().invoke(app, ["models", *words])

    assert "no models" in farm().stderr
    added = farm("add", "wan2.2", str(folder))
    assert added.exit_code == 0, added.output
    assert added.stdout.startswith("wan2.2@")
    listed = farm("list")
    assert "wan2.2" in listed.stdout and str(folder) in listed.stdout
    assert farm().stdout == listed.stdout
    checked = farm("check", "wan2.2")
    assert checked.exit_code == 0 and "hashes right" in checked.stderr
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    broken = farm("check", "wan2.2")
    assert broken.exit_code != 0 and "its contents changed" in str(broken.exception)
    assert farm("remove", "wan2.2").exit_code == 0
    assert farm("show", "wan2.2").exit_code != 0
