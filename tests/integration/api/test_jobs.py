"""Jobs through the API: submit, validate, list, change, command, delete."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from farm.db import tables as t
from farm.states import AttemptState
from tests.integration.api.conftest import Farm, probe_job


def pointers(answer: Any) -> list[str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return [fault["pointer"] for fault in answer.json().get("errors", [])]


def count(farm: Farm, table: sa.Table) -> int:
    with farm.db.read() as conn:
        return int(conn.scalar(sa.select(sa.func.count()).select_from(table)) or 0)


def test_a_job_is_submitted_and_read_back(farm: Farm) -> None:
    asset = farm.upload(b"scene")
    first = farm.submit()
    answer = farm.call.post(
        "/v1/jobs",
        json=probe_job(
            name="turntable", priority=70, labels={"shot": "s010"}, assets={"scene/a.xml": asset},
            after=[first["id"]],
        ),
    )  # fmt: skip
    assert answer.status_code == 201
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert answer.headers["etag"] == '"1"'
    assert job["project"] == {"id": farm.projects["default"], "name": "default"}
    assert job["user"]["name"] == "ada"
    assert (job["state"], job["waiting_on"], job["after"]) == ("waiting", 1, [first["id"]])
    assert job["assets"] == {"scene/a.xml": asset}
    assert (job["tasks_total"], job["frames_total"], job["tasks"]["blocked"]) == (2, 4, 2)
    assert [step["name"] for step in job["steps"]] == ["probe"]
    assert job["created_at"].endswith("Z")
    again = farm.call.get(f"/v1/jobs/{job['id']}")
    assert again.json() == job
    assert again.headers["etag"] == '"1"'


def test_submitting_wakes_the_scheduler(farm: Farm) -> None:
    with farm.listening("scheduler") as scheduler:
        farm.submit()
        assert scheduler.wait("scheduler", 5.0)


def test_validating_counts_and_stores_nothing(farm: Farm) -> None:
    missing = "0" * 64
    answer = farm.call.post("/v1/jobs/validate", json=probe_job(assets={"a.xml": missing}))
    assert answer.status_code == 200
    body = answer.json()
    assert (body["valid"], body["tasks"], body["frames"], body["missing"]) == (True, 2, 4, [missing])
    assert body["steps"][0]["outputs"] == [{"name": "probe.png", "format": "png", "width": 1, "height": 1}]
    assert count(farm, t.jobs) == 0


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"colour": "red"}, "/colour"),
        ({"kind": "rendr"}, "/kind"),
        ({"name": ""}, "/name"),
        ({"name": "a\nb"}, "/name"),
        ({"name": "x" * 201}, "/name"),
        ({"priority": 101}, "/priority"),
        ({"priority": "50"}, "/priority"),
        ({"priority": True}, "/priority"),
        ({"labels": {"": "x"}}, "/labels/"),
        ({"labels": {"a": 1}}, "/labels/a"),
        ({"project": "nowhere"}, "/project"),
        ({"after": ["job_0"]}, "/after/0"),
        ({"spec": {"steps": [{"tasks": 1, "bogus": 2}]}}, "/spec/steps/0/bogus"),
        ({"spec": {"steps": 3}}, "/spec/steps"),
        ({"spec": []}, "/spec"),
        ({"assets": {"../../secret": "0" * 64}}, "/assets/..~1..~1secret"),
        ({"assets": {"/etc/passwd": "0" * 64}}, "/assets/~1etc~1passwd"),
        ({"assets": {"a": "F" * 64}}, "/assets/a"),
        ({"assets": {"a": "0" * 64, "b/c.png": "1" * 64}}, "/assets/a"),
        ({"spec": {"trace": "x\x00y"}}, "/spec/trace"),
    ],
)
def test_a_bad_field_is_named_and_nothing_is_stored(farm: Farm, change: dict[str, Any], pointer: str) -> None:
    answer = farm.call.post("/v1/jobs", json=probe_job(**change))
    assert answer.status_code == 422, answer.text
    assert pointer in pointers(answer)
    assert count(farm, t.jobs) == count(farm, t.tasks) == 0


def test_every_missing_asset_is_named(farm: Farm) -> None:
    have = farm.upload(b"here")
    answer = farm.call.post("/v1/jobs", json=probe_job(assets={"a": "0" * 64, "b": have, "c/d": "1" * 64}))
    assert pointers(answer) == ["/assets/a", "/assets/c~1d"]


def test_an_asset_whose_bytes_were_lost_counts_as_missing(farm: Farm) -> None:
    sha256 = farm.upload(b"soon gone")
    path = farm.store.path(sha256)
    assert path is not None
    path.unlink()
    assert farm.call.post("/v1/assets/missing", json={"sha256": [sha256]}).json() == {"missing": [sha256]}
    assert pointers(farm.call.post("/v1/jobs", json=probe_job(assets={"a": sha256}))) == ["/assets/a"]


def test_jobs_are_found_by_the_beginning_or_the_end_of_their_id(farm: Farm) -> None:
    first, second = farm.submit()["id"], farm.submit()["id"]

    def found(part: str) -> list[str]:
        return [job["id"] for job in farm.call.get("/v1/jobs", params={"id": part}).json()["items"]]

    assert found(first[-6:]) == [first]
    assert found(second) == [second]
    assert found(first[4:9]) == found(first[:9]) == [second, first]
    assert found("job_" + first[-6:]) == []
    assert farm.call.get("/v1/jobs", params={"id": "%"}).status_code == 422


def test_a_job_over_the_limits_is_refused_by_both_doors(farm: Farm) -> None:
    big = probe_job(spec={"steps": [{"tasks": 501}]})
    many = probe_job(spec={"steps": [{"tasks": 2, "frames": 3001}]})
    for path in ("/v1/jobs/validate", "/v1/jobs"):
        for body in (big, many):
            answer = farm.call.post(path, json=body)
            assert answer.status_code == 422, answer.text
            assert answer.json()["type"] == "urn:stillframe:problem:limit-exceeded"
    assert count(farm, t.jobs) == 0


def test_a_job_over_the_limits_names_the_frames_where_it_has_any(farm: Farm) -> None:
    asset = farm.upload(b"<scene version='3.0.0'/>")
    body = probe_job(
        kind="render",
        spec={"scene": "a.xml", "frames": "1-501", "chunk_frames": 1, "resolution": "16x16"},
        assets={"a.xml": asset},
    )
    for path in ("/v1/jobs", "/v1/jobs/validate"):
        assert pointers(farm.call.post(path, json=body)) == ["/spec/frames"]


def test_a_job_that_no_slot_can_run_is_taken_with_a_warning_until_a_slot_joins(farm: Farm) -> None:
    job = farm.submit()
    [warning] = job["warnings"]
    assert "step 'probe': no slot of this farm serves pool 'render'" in warning
    assert "until a node with one joins" in warning
    answer = farm.call.post("/v1/jobs/validate", json=probe_job())
    assert answer.json()["warnings"] == [warning]
    assert warning in [
        reason["text"] for reason in farm.call.get(f"/v1/jobs/{job['id']}/why").json()["items"]
    ]
    farm.slot()
    assert farm.call.get(f"/v1/jobs/{job['id']}").json()["warnings"] == []
    asset = farm.upload(b"<scene version='3.0.0'/>")
    spec = {"scene": "a.xml", "frames": "1", "resolution": "16x16", "device": "cuda"}
    cuda = probe_job(kind="render", spec=spec, assets={"a.xml": asset})
    [warning] = farm.call.post("/v1/jobs", json=cuda).json()["warnings"]
    wants = "none of the 1 slots of pool 'render' fulfils what it requires (device = 'cuda')"
    assert f"step 'render': {wants}; their devices are cpu; it waits" in warning
    shot = farm.upload(b"BLENDER")
    spec = {"scene": "a.blend", "frames": "1", "device": "optix"}
    optix = probe_job(kind="render", spec=spec, assets={"a.blend": shot})
    # three steps lack the same, which is said once
    [warning] = farm.call.post("/v1/jobs", json=optix).json()["warnings"]
    assert f"steps 'preflight', 'canary', 'render': {wants}; their devices are cpu; it waits" in warning


@pytest.mark.parametrize("frames", ["1 10", "5-1", "1-5:0", "", "1-1000000000"])
def test_a_bad_frame_range_is_refused_with_its_position(farm: Farm, frames: str) -> None:
    body = {
        "kind": "render", "name": "r", "project": "default",
        "spec": {"scene": "a.xml", "frames": frames}, "assets": {"a.xml": farm.upload(b"<scene/>")},
    }  # fmt: skip
    answer = farm.call.post("/v1/jobs", json=body)
    assert answer.status_code == 422, answer.text
    assert "/spec/frames" in pointers(answer)
    assert "position" in answer.json()["detail"]


def test_jobs_are_listed_newest_first_with_filters_and_cursor(farm: Farm) -> None:
    made = [farm.submit(name=f"shot {n}", labels={"n": str(n % 2)}, paused=n == 4)["id"] for n in range(5)]
    farm.submit(farm.as_("submit", "read", user="ben"), name="other", project="other")
    seen: list[str] = []
    cursor = None
    while True:
        page = farm.call.get(
            "/v1/jobs", params={"limit": 2, "q": "SHOT", **({"cursor": cursor} if cursor else {})}
        )
        seen += [job["id"] for job in page.json()["items"]]
        cursor = page.json()["next"]
        if cursor is None:
            break
    assert seen == made[::-1]

    def names(**filters: Any) -> list[str]:
        answer = farm.call.get("/v1/jobs", params=filters)
        assert answer.status_code == 200, answer.text
        return [job["name"] for job in answer.json()["items"]]

    assert names(label=["n:1"]) == ["shot 3", "shot 1"]
    assert names(project="other") == names(user="ben") == ["other"]
    assert names(project="nowhere") == names(user="nobody") == []
    assert names(paused="true") == ["shot 4"]
    assert names(state="done") == []
    assert len(names(state=["waiting", "running"])) == 6
    assert names(kind="render") == []
    assert names(q="100%_") == []


def test_a_change_needs_the_tag_that_was_read(farm: Farm) -> None:
    path = f"/v1/jobs/{farm.submit()['id']}"
    assert farm.call.patch(path, json={"priority": 60}).status_code == 428
    changed = farm.call.patch(path, json={"priority": 60, "labels": {"a": "b"}}, headers={"If-Match": '"1"'})
    assert changed.status_code == 200
    assert (changed.json()["priority"], changed.json()["labels"]) == (60, {"a": "b"})
    assert changed.headers["etag"] == '"2"'
    late = farm.call.patch(path, json={"priority": 10}, headers={"If-Match": '"1"'})
    assert late.status_code == 412
    assert late.json()["type"] == "urn:stillframe:problem:precondition-failed"
    assert farm.call.patch(path, json={"priority": 10}, headers={"If-Match": "nonsense"}).status_code == 412
    assert farm.call.patch(path, json={"priority": 10}, headers={"If-Match": "*"}).json()["priority"] == 10
    assert farm.call.patch(path, json={"priority": None}, headers={"If-Match": "*"}).status_code == 422
    assert farm.call.patch(path, json={"state": "done"}, headers={"If-Match": "*"}).status_code == 422


def test_cancel_pause_resume_and_delete(farm: Farm) -> None:
    job_id = farm.submit()["id"]
    path = f"/v1/jobs/{job_id}"
    assert farm.call.post(f"{path}/pause", json={}).json()["paused"] is True
    assert farm.call.post(f"{path}/pause").json()["paused"] is True
    assert farm.call.post(f"{path}/resume").json()["paused"] is False
    refused = farm.call.delete(path)
    assert refused.status_code == 409
    assert "cancel it first" in refused.json()["detail"]
    cancelled = farm.call.post(f"{path}/cancel").json()
    assert (cancelled["state"], cancelled["tasks"]["cancelled"]) == ("cancelled", 2)
    assert farm.call.post(f"{path}/retry").status_code == 409
    assert farm.call.delete(path).status_code == 204
    assert farm.call.get(path).status_code == 404
    assert count(farm, t.tasks) == 0


def test_cancelling_a_running_job_wakes_its_node(farm: Farm) -> None:
    node_id, slot_id = farm.slot()
    job_id = farm.submit()["id"]
    farm.claim(slot_id, job_id)
    with farm.listening(f"node.{node_id}") as agent:
        farm.call.post(f"/v1/jobs/{job_id}/cancel")
        assert agent.wait(f"node.{node_id}", 5.0)
    tasks = farm.call.get(f"/v1/jobs/{job_id}/tasks").json()["items"]
    assert sorted((task["state"], task["wish"]) for task in tasks) == [
        ("cancelled", None), ("running", "cancel"),
    ]  # fmt: skip


def test_retry_runs_the_failed_tasks_alone(farm: Farm) -> None:
    _, slot_id = farm.slot()
    job_id = farm.submit()["id"]
    first, second = farm.claim(slot_id, job_id, limit=2)
    farm.finish(slot_id, first, [farm.picture(1), farm.picture(2)])
    farm.finish(slot_id, second, state=AttemptState.FAILED, permanent=True)
    job = farm.call.get(f"/v1/jobs/{job_id}").json()
    assert (job["state"], job["tasks"]["failed"], job["tasks"]["done"]) == ("failed", 1, 1)
    assert job["error"] == "a task of step 'probe' failed: it broke; a retry runs it again"
    tasks = farm.call.get(f"/v1/jobs/{job_id}/tasks", params={"state": "failed"}).json()["items"]
    assert [task["error"] for task in tasks] == ["it broke"]
    job = farm.call.post(f"/v1/jobs/{job_id}/retry").json()
    assert (job["state"], job["tasks"]["ready"], job["tasks"]["done"]) == ("running", 1, 1)


def test_why_says_what_a_job_waits_for(farm: Farm) -> None:
    job = farm.submit(paused=True)
    reasons = farm.call.get(f"/v1/jobs/{job['id']}/why").json()["items"]
    assert any("paused" in reason["text"] for reason in reasons)
    task = farm.call.get(f"/v1/jobs/{job['id']}/tasks").json()["items"][0]
    assert farm.call.get(f"/v1/tasks/{task['id']}/why").json()["items"]
    assert farm.call.get("/v1/jobs/job_none/why").status_code == 404


def render_job(farm: Farm, **spec: Any) -> dict[str, Any]:
    """The body of a small render job."""
    return {
        "kind": "render",
        "name": "r",
        "project": "default",
        "spec": {"scene": "a.xml", "frames": "1-4", "resolution": "64x36", **spec},
        "assets": {"a.xml": farm.upload(b'<scene version="3.0.0"/>')},
    }


@pytest.mark.parametrize(
    ("spec", "pointer"),
    [
        ({"engine": "povray"}, "/spec/engine"),
        ({"outputs": [{"format": "bmp"}]}, "/spec/outputs/0"),
        ({"bogus": 1}, "/spec/bogus"),
        ({"scene": "../../secret"}, "/spec/scene"),
        ({"scene": "/etc/passwd"}, "/spec/scene"),
        ({"scene": "b.xml"}, "/spec/scene"),
        ({"frames": "1-5:0"}, "/spec/frames"),
        ({"device": "tpu"}, "/spec/device"),
    ],
)
def test_a_bad_render_spec_is_named_field_by_field(farm: Farm, spec: dict[str, Any], pointer: str) -> None:
    for path in ("/v1/jobs/validate", "/v1/jobs"):
        answer = farm.call.post(path, json=render_job(farm, **spec))
        assert answer.status_code == 422, answer.text
        assert any(found.startswith(pointer) for found in pointers(answer)), answer.text
    assert count(farm, t.jobs) == 0


def test_a_render_job_is_stored_with_todays_defaults_and_reads_back_the_same(farm: Farm) -> None:
    from jobs import registry

    answer = farm.call.post("/v1/jobs", json=render_job(farm))
    assert answer.status_code == 201, answer.text
    kind = registry.kind("render")
    assert kind.parse(answer.json()["spec"]) == kind.parse(render_job(farm)["spec"])
    assert answer.json()["frames_total"] == 4


def test_the_documents_example_is_a_valid_job(farm: Farm) -> None:
    document = farm.call.get("/openapi.json").json()
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]
    answer = farm.call.post("/v1/jobs/validate", json=body["examples"]["turntable"]["value"])
    assert answer.status_code == 200, answer.text
    assert answer.json()["frames"] == 48


def test_five_thousand_frames_are_read_page_by_page(farm: Farm) -> None:
    job = farm.submit(spec={"steps": [{"name": "probe", "tasks": 50, "frames": 100}]})
    numbers: list[int] = []
    query: dict[str, Any] = {"limit": 1000}
    while True:
        page = farm.call.get(f"/v1/jobs/{job['id']}/frames", params=query).json()
        numbers += [frame["number"] for frame in page["items"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert numbers == list(range(1, 5001))
    assert farm.call.get(f"/v1/jobs/{job['id']}/frames", params={"limit": 1001}).status_code == 422
