"""The Python client against the real API over a real socket: what one sends, the other takes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from api.cli.main import app
from farm.client import Credentials, FarmClient
from farm.errors import Conflict, InvalidInput, NotFound, Unauthenticated
from farm.records import ArtifactRecord
from tests.integration.api.conftest import Running

SPEC = {"steps": [{"name": "probe", "tasks": 2, "frames": 2}]}


def client(running: Running) -> FarmClient:
    return FarmClient.of(Credentials(running.url, running.secret))


def test_a_job_goes_from_upload_to_download_through_the_client(running: Running, tmp_path: Path) -> None:
    farm = running.farm
    node_id, slot_id = farm.slot()
    scene = tmp_path / "scene.xml"
    scene.write_bytes(b"<scene/>" * 300_000)
    with client(running) as remote:
        files = remote.upload({"scene/scene.xml": scene})
        assert files == {"scene/scene.xml": hashlib.sha256(scene.read_bytes()).hexdigest()}
        job = remote.submit(
            name="turntable", kind="probe", spec=SPEC, assets=files, project="default", labels={"a": "b"},
            idempotency_key="one",
        )  # fmt: skip
        again = remote.submit(
            name="turntable", kind="probe", spec=SPEC, assets=files, project="default", labels={"a": "b"},
            idempotency_key="one",
        )  # fmt: skip
        assert again.id == job.id
        assert job.project is not None
        assert (job.project.name, job.tasks_total, job.frames_total) == ("default", 2, 4)
        assert remote.prioritise(job.id, 80).priority == 80
        assert remote.pause(job.id).paused
        assert any("paused" in reason.text for reason in remote.why(job.id))
        assert not remote.resume(job.id).paused
        task = farm.claim(slot_id, job.id)[0]
        farm.write_log(task.attempt_id, b"line \xff\n")
        film = b"film" * 1000
        farm.store.put_stream([film])
        record = ArtifactRecord("film.mp4", hashlib.sha256(film).hexdigest(), len(film), "video/mp4")
        farm.finish(slot_id, task, [farm.picture(1), farm.picture(2)], [record])
        read = remote.job(job.id)
        assert (read.state, read.tasks_done, read.frames_done, read.steps[0].progress) == (
            "running",
            1,
            2,
            0.5,
        )
        assert [j.id for j in remote.jobs(state="running", q="turn", paused=False)] == [job.id]
        assert [step.name for step in remote.steps(job.id)] == ["probe"]
        assert [t.state for t in remote.tasks(job.id)] == ["done", "ready"]
        attempts = list(remote.attempts(job.id))
        assert [a.state for a in attempts] == ["done"]
        assert "".join(remote.log(attempts[0].id)) == "line \ufffd\n"
        frame = next(remote.frames(job.id, state="published"))
        got = remote.download_frame(frame, "probe.png", tmp_path / "f.png")
        assert hashlib.sha256(got.read_bytes()).hexdigest() == frame.files[0].sha256
        artifact = remote.artifacts(job.id)[0]
        assert remote.download_artifact(artifact, tmp_path / "film.mp4").read_bytes() == film
        assert [node.name for node in remote.nodes()] == ["n1"]
        assert [slot.id for slot in remote.slots()] == [slot_id]
        assert [pool.name for pool in remote.pools()] == ["render"]
        assert [project.name for project in remote.projects()] == ["default", "other"]
        assert list(remote.buffers()) == []
        remote.budgets()
        assert remote.keys()
        remote.drain_node(node_id)
        assert remote.nodes()[0].state == "drained"
        remote.resume_node(node_id)
        assert remote.collect_garbage(dry_run=True).to_json()["dry_run"] is True
        assert remote.cancel(job.id).state == "cancelled"
        remote.delete(job.id)
        with pytest.raises(NotFound):
            remote.job(job.id)


def test_events_are_followed_from_the_first_to_the_newest(running: Running) -> None:
    job = running.farm.submit()["id"]
    running.farm.call.post(f"/v1/jobs/{job}/pause")
    seen = []
    with client(running) as remote:
        for event in remote.events(job=job, last_id=0, stop=lambda: len(seen) >= 2):
            seen.append((event.type, event.job_id))
            assert event.at is not None
    assert seen == [("job.submitted", job), ("job.changed", job)]


def test_projects_are_made_and_changed_from_the_command_line(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_URL", running.url)
    monkeypatch.setenv("FARM_KEY", running.secret)

    def farm(*words: str) -> Result:
        return CliRunner().invoke(app, ["projects", *words])

    made = farm("make", "film a/b", "--reserve", "--max-slots", "4", "--json")
    assert made.exit_code == 0, made.output
    project = json.loads(made.stdout)
    assert (project["reserved"], project["max_slots"], project["share"]) == (True, 4, 1.0)
    # what is not named stays; "none" lifts a limit; a name may hold what a path may not
    changed = json.loads(farm("change", "film a/b", "--max-slots", "none", "--quota", "60", "--json").stdout)
    assert (changed["reserved"], changed["max_slots"], changed["quota_slot_s"]) == (True, None, 60.0)
    assert farm("change", project["id"], "--no-reserve", "--share", "2").exit_code == 0
    with client(running) as remote:
        found = {p.name: (p.reserved, p.share) for p in remote.projects()}
        assert found["film a/b"] == (False, 2.0)
        with pytest.raises(InvalidInput) as caught:
            remote.change_project(project["id"], share=0)
        assert [fault.pointer for fault in caught.value.faults] == ["/share"]
        with pytest.raises(NotFound):
            remote.change_project("nope", reserved=True)
    assert farm("change", "film a/b").exit_code == 2
    assert farm("change", "film a/b", "--max-slots", "many").exit_code == 2
    listed = [row["name"] for row in json.loads(farm("--json").stdout)]
    assert listed == ["default", "film a/b", "other"]


def test_errors_come_back_as_what_they_were(running: Running) -> None:
    with client(running) as remote:
        with pytest.raises(InvalidInput) as caught:
            remote.submit(name="x", kind="probe", spec={"bogus": 1}, project="default")
        assert [fault.pointer for fault in caught.value.faults] == ["/spec/bogus"]
        with pytest.raises(InvalidInput, match="there is no kind"):
            remote.submit(name="x", kind="nope", spec={})
        job = remote.submit(name="x", kind="probe", spec=SPEC, project="default")
        with pytest.raises(Conflict, match="cancel it first"):
            remote.delete(job.id)
        made = remote.make_key("k", ["read"])
        remote.revoke_key(made.id)
    with FarmClient.of(Credentials(running.url, made.secret or "")) as remote, pytest.raises(Unauthenticated):
        list(remote.jobs())
