"""The doors: hosts, keys, sessions, CSRF, projects, limits, headers, errors that tell nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from farm.db import tables as t
from farm.db.connect import Database
from tests.integration.api.conftest import BASE, Farm, probe_job


def problem(answer: Any, status: int, slug: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["type"] == f"urn:stillframe:problem:{slug}"
    assert body["status"] == status
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


def stranger(farm: Farm) -> TestClient:
    return TestClient(farm.call.app, base_url=BASE)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8630", "127.0.0.1.evil.example", "", "169.254.169.254"]
)
def test_another_host_is_answered_nothing(farm: Farm, host: str) -> None:
    for path in ("/healthz", "/v1/jobs", "/openapi.json", "/nope"):
        problem(farm.call.get(path, headers={"Host": host}), 421, "wrong-host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "[::1]:8630", "127.0.0.1"])
def test_loopback_names_are_answered(farm: Farm, host: str) -> None:
    assert farm.call.get("/healthz", headers={"Host": host}).status_code == 200


def test_nothing_but_health_and_the_document_is_open(farm: Farm) -> None:
    client = stranger(farm)
    document = farm.call.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if not operation.get("security"):
                assert (method, path) in {("get", "/healthz"), ("get", "/readyz"), ("post", "/v1/session")}
                continue
            where = path.replace("{take}", "1").replace("{number}", "1").replace("{sha256}", "0" * 64)
            answer = client.request(method, where.replace("{", "").replace("}", ""))
            assert answer.status_code == 401, (method, path, answer.text)
            assert "bearer" in answer.headers["www-authenticate"].lower()


@pytest.mark.parametrize(
    "header", ["Bearer nope", "Bearer ", "Basic YTpi", "Bearer sfk_" + "x" * 5000, "bearer"]
)
def test_a_wrong_key_is_refused(farm: Farm, header: str) -> None:
    problem(stranger(farm).get("/v1/jobs", headers={"Authorization": header}), 401, "unauthenticated")


def test_loopback_is_not_trusted(farm: Farm) -> None:
    problem(stranger(farm).get("/v1/jobs"), 401, "unauthenticated")
    problem(stranger(farm).get("/metrics"), 401, "unauthenticated")


@pytest.mark.parametrize(
    ("scope", "allowed", "refused"),
    [
        ("read", [("GET", "/v1/jobs")], [("POST", "/v1/jobs"), ("POST", "/v1/nodes/n/drain")]),
        ("submit", [("POST", "/v1/jobs/validate"), ("GET", "/v1/jobs")], [("GET", "/v1/nodes")]),
        ("operate", [], [("POST", "/v1/jobs"), ("GET", "/v1/keys"), ("POST", "/v1/projects")]),
        ("worker", [("GET", "/v1/kinds")], [("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/v1/keys")]),
    ],
)  # fmt: skip
def test_each_scope_opens_its_own_doors(
    farm: Farm, scope: str, allowed: list[tuple[str, str]], refused: list[tuple[str, str]]
) -> None:
    client = farm.as_(scope)
    for method, path in allowed:
        body = probe_job() if method == "POST" else None
        assert client.request(method, path, json=body).status_code == 200
    for method, path in refused:
        answer = client.request(method, path, json=probe_job() if path == "/v1/jobs" else None)
        assert scope in problem(answer, 403, "forbidden")["detail"]


def test_a_submitter_commands_its_own_jobs_and_an_operator_any(farm: Farm) -> None:
    job = farm.submit(farm.as_("submit", user="ben"))
    path = f"/v1/jobs/{job['id']}/pause"
    problem(farm.as_("submit", "read", user="ada").post(path), 403, "forbidden")
    assert farm.as_("submit", user="ben").post(path).status_code == 200
    assert farm.as_("operate", user="ada").post(f"/v1/jobs/{job['id']}/resume").status_code == 200


def test_a_key_that_may_only_submit_follows_its_own_jobs_and_no_others(farm: Farm) -> None:
    _, slot_id = farm.slot()
    ben = farm.as_("submit", user="ben")
    mine, theirs = farm.submit(ben, name="mine"), farm.submit(name="theirs")
    paths: dict[str, list[str]] = {}
    for job in (mine, theirs):
        job_id, step_id = job["id"], job["steps"][0]["id"]
        task = farm.claim(slot_id, job_id)[0]
        farm.finish(slot_id, task, [farm.picture(1), farm.picture(2)])
        paths[job["name"]] = [
            f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/steps", f"/v1/jobs/{job_id}/tasks",
            f"/v1/jobs/{job_id}/why", f"/v1/jobs/{job_id}/attempts", f"/v1/jobs/{job_id}/frames",
            f"/v1/jobs/{job_id}/artifacts", f"/v1/steps/{step_id}", f"/v1/steps/{step_id}/frames",
            f"/v1/tasks/{task.task_id}", f"/v1/tasks/{task.task_id}/why", f"/v1/tasks/{task.task_id}/preview",
            f"/v1/attempts/{task.attempt_id}", f"/v1/frames/{step_id}/1/1",
            f"/v1/frames/{step_id}/1/1/probe.png", f"/v1/frames/{step_id}/1/1/thumbnail",
        ]  # fmt: skip
    for own, other in zip(paths["mine"], paths["theirs"], strict=True):
        assert ben.get(own).status_code in (200, 204), own
        problem(ben.get(other), 404, "not-found")
        assert farm.call.get(other).status_code in (200, 204), other
    assert [job["name"] for job in ben.get("/v1/jobs").json()["items"]] == ["mine"]
    assert ben.get("/v1/jobs", params={"user": "ada"}).json()["items"] == []
    problem(ben.post(f"/v1/jobs/{theirs['id']}/cancel"), 404, "not-found")
    assert ben.post(f"/v1/jobs/{mine['id']}/cancel").status_code == 200
    for path in ("/v1/nodes", "/v1/slots", "/v1/buffers", "/v1/events"):
        problem(ben.get(path), 403, "forbidden")


def test_a_key_of_one_project_sees_that_project_alone(farm: Farm) -> None:
    _, slot_id = farm.slot()
    mine, theirs = farm.submit(project="other"), farm.submit(project="default")
    task = farm.claim(slot_id, theirs["id"])[0]
    farm.finish(slot_id, task, [farm.picture(1), farm.picture(2)])
    task = farm.claim(slot_id, theirs["id"])[0]
    client = farm.as_("read", "submit", "operate", user="ben", project="other")
    assert [job["id"] for job in client.get("/v1/jobs").json()["items"]] == [mine["id"]]
    assert client.get("/v1/jobs", params={"project": "default"}).json()["items"] == []
    assert [p["name"] for p in client.get("/v1/projects").json()["items"]] == ["other"]
    assert [u["name"] for u in client.get("/v1/users").json()["items"]] == ["ben"]
    assert client.get("/v1/slots").json()["items"][0]["task_ids"] == []
    assert farm.call.get("/v1/slots").json()["items"][0]["task_ids"] == [task.task_id]
    job_id, step_id = theirs["id"], theirs["steps"][0]["id"]
    for path in (
        f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/steps", f"/v1/jobs/{job_id}/tasks",
        f"/v1/jobs/{job_id}/why", f"/v1/jobs/{job_id}/attempts",
        f"/v1/jobs/{job_id}/frames", f"/v1/jobs/{job_id}/artifacts",
        f"/v1/steps/{step_id}", f"/v1/steps/{step_id}/frames", f"/v1/tasks/{task.task_id}",
        f"/v1/tasks/{task.task_id}/attempts", f"/v1/attempts/{task.attempt_id}",
        f"/v1/attempts/{task.attempt_id}/log", f"/v1/attempts/{task.attempt_id}/log/live",
        f"/v1/frames/{step_id}/1/1", f"/v1/frames/{step_id}/1/1/probe.png",
        f"/v1/frames/{step_id}/1/1/thumbnail", f"/v1/events?job={job_id}", "/v1/projects/default",
        "/v1/users/ada", f"/v1/buffers?job={job_id}",
    ):  # fmt: skip
        if "live" not in path and "events" not in path:
            assert farm.call.get(path).status_code == 200, path
        problem(client.get(path), 404, "not-found")
    for verb in ("cancel", "pause", "resume", "retry"):
        problem(client.post(f"/v1/jobs/{job_id}/{verb}"), 404, "not-found")
    problem(client.delete(f"/v1/jobs/{job_id}"), 404, "not-found")
    for method, path in (("POST", "/v1/nodes/n1/drain"), ("GET", "/metrics")):
        problem(client.request(method, path), 403, "forbidden")
    refused = client.post("/v1/jobs", json=probe_job(project="default"))
    assert problem(refused, 422, "invalid-input")["errors"][0]["pointer"] == "/project"
    refused = client.post("/v1/jobs", json=probe_job(project="other", after=[job_id]))
    assert problem(refused, 422, "invalid-input")["errors"][0]["pointer"] == "/after/0"
    assert client.post("/v1/jobs", json=probe_job(project=None)).json()["project"]["name"] == "other"


def test_bytes_of_another_project_are_out_of_sight(farm: Farm) -> None:
    secret = farm.upload(b"their scene")
    farm.submit(project="default", assets={"a": secret})
    client = farm.as_("read", "submit", project="other")
    problem(client.get(f"/v1/assets/{secret}"), 404, "not-found")
    mine = farm.upload(b"my scene")
    farm.submit(project="other", assets={"a": mine})
    assert client.get(f"/v1/assets/{mine}").content == b"my scene"


def test_behind_a_proxy_that_speaks_tls_the_cookie_travels_over_it_alone(farm: Farm) -> None:
    key = {"key": farm.key("read")}
    client = TestClient(farm.call.app, base_url=BASE)
    assert "Secure" not in client.post("/v1/session", json=key).headers["set-cookie"]
    app = farm.call.app
    app.state.services = replace(
        app.state.services, settings=farm.settings.model_copy(update={"behind_tls": True})
    )
    opened = client.post("/v1/session", json=key).headers
    assert "Secure" in opened["set-cookie"]
    client.headers["Cookie"] = opened["set-cookie"].partition(";")[0]
    csrf = client.get("/v1/session").json()["csrf"]
    closed = client.delete("/v1/session", headers={"X-CSRF-Token": csrf})
    assert "Secure" in closed.headers["set-cookie"]


def test_a_session_is_a_strict_cookie_with_a_csrf_token(farm: Farm) -> None:
    client = stranger(farm)
    opened = client.post("/v1/session", json={"key": farm.key("submit", "read")})
    assert opened.status_code == 201
    cookie = opened.headers["set-cookie"]
    for word in ("HttpOnly", "SameSite=strict", "Path=/", "farm_session="):
        assert word in cookie
    token = client.cookies["farm_session"]
    assert token not in opened.text
    csrf = opened.json()["csrf"]
    with farm.db.read() as conn:
        stored = conn.execute(sa.select(t.web_sessions)).mappings().one()
    assert token not in str(dict(stored))
    assert client.get("/v1/jobs").status_code == 200
    assert client.get("/v1/session").json()["csrf"] == csrf
    for headers in ({}, {"X-CSRF-Token": "x"}, {"X-CSRF-Token": token}):
        problem(client.post("/v1/jobs", json=probe_job(), headers=headers), 403, "forbidden")
    assert client.post("/v1/jobs", json=probe_job(), headers={"X-CSRF-Token": csrf}).status_code == 201
    problem(client.delete("/v1/session"), 403, "forbidden")
    assert client.delete("/v1/session", headers={"X-CSRF-Token": csrf}).status_code == 204
    client.cookies.set("farm_session", token)
    problem(client.get("/v1/jobs"), 401, "unauthenticated")


def test_a_revoked_key_ends_its_sessions_at_once(farm: Farm) -> None:
    made = farm.call.post("/v1/keys", json={"name": "k", "scopes": ["read"]}).json()
    client = stranger(farm)
    client.post("/v1/session", json={"key": made["secret"]})
    assert client.get("/v1/jobs").status_code == 200
    assert farm.call.delete(f"/v1/keys/{made['id']}").status_code == 204
    problem(client.get("/v1/jobs"), 401, "unauthenticated")
    problem(client.post("/v1/session", json={"key": made["secret"]}), 401, "unauthenticated")
    assert farm.call.delete(f"/v1/keys/{made['id']}").status_code == 204


def test_a_session_that_is_over_is_refused(farm: Farm) -> None:
    client = stranger(farm)
    client.post("/v1/session", json={"key": farm.key("read")})
    with farm.db.write() as conn:
        conn.execute(sa.update(t.web_sessions).values(expires_at=1.0))
    problem(client.get("/v1/jobs"), 401, "unauthenticated")


def test_every_answer_carries_the_strict_headers(farm: Farm) -> None:
    for answer in (
        farm.call.get("/healthz"), farm.call.get("/v1/jobs"), farm.call.get("/nope"),
        stranger(farm).get("/v1/jobs"), farm.call.get("/healthz", headers={"Host": "x"}),
    ):  # fmt: skip
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert farm.call.get("/v1/jobs").headers["cache-control"] == "no-store"


def test_a_request_id_is_given_back_if_it_is_harmless(farm: Farm) -> None:
    assert farm.call.get("/healthz", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for odd in ("a b", "x" * 200, "<script>"):
        assert (
            farm.call.get("/healthz", headers={"X-Request-Id": odd})
            .headers["x-request-id"]
            .startswith("req_")
        )


def test_a_body_over_the_limit_is_refused_by_length_and_by_count(farm: Farm) -> None:
    big = b'{"name": "' + b"x" * 200_000 + b'"}'
    headers = {"Content-Type": "application/json"}
    body = problem(farm.call.post("/v1/jobs", content=big, headers=headers), 413, "too-large")
    assert "200,000" in body["detail"]
    streamed = farm.call.post("/v1/jobs", content=iter([big[:150_000], big[150_000:]]), headers=headers)
    problem(streamed, 413, "too-large")
    problem(farm.call.post("/v1/session", content=iter([big]), headers=headers), 413, "too-large")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "dictionary"),
        (b'{"name": NaN}', "NaN"),
        (b'{"name": "\\ud800"}', "surrogate"),
        (b'{"name": "a", "name": "b"}', "twice"),
        (b"\xff", "UTF-8"),
        (b"[" * 5000, "nested"),
        (b"", "required"),
    ],
)
def test_a_body_that_is_no_proper_json_is_refused(farm: Farm, content: bytes, words: str) -> None:
    answer = farm.call.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})
    assert words in problem(answer, 422, "invalid-input")["detail"]


def test_another_type_of_body_is_refused(farm: Farm) -> None:
    answer = farm.call.post("/v1/jobs", content=b"a=1", headers={"Content-Type": "text/plain"})
    problem(answer, 415, "unsupported-media-type")


def test_unknown_and_repeated_query_parameters_are_refused(farm: Farm) -> None:
    body = problem(farm.call.get("/v1/jobs?colour=red"), 422, "invalid-input")
    assert body["errors"][0] | {"message": ""} == {"in": "query", "pointer": "/colour", "message": ""}
    problem(farm.call.get("/v1/jobs?limit=1&limit=2"), 422, "invalid-input")
    problem(farm.call.get("/v1/jobs?q=%00"), 422, "invalid-input")
    problem(farm.call.get("/healthz?x=1"), 422, "invalid-input")
    problem(farm.call.post("/v1/jobs/validate?dry=1", json=probe_job()), 422, "invalid-input")
    problem(farm.call.get(f"/v1/jobs?limit={2**70}"), 422, "invalid-input")


@pytest.mark.parametrize("name", ["%00", "job_x%00", "..%2f..%2fetc", "%ff", "' OR 1=1 --", "x" * 3000])
def test_odd_ids_are_simply_not_found(farm: Farm, name: str) -> None:
    for path in (
        "jobs",
        "tasks",
        "attempts",
        "nodes",
        "slots",
        "projects",
        "users",
        "keys",
        "buffers",
        "artifacts",
    ):
        assert farm.call.get(f"/v1/{path}/{name}").status_code == 404, path


def test_a_body_where_none_belongs_is_refused(farm: Farm) -> None:
    path = f"/v1/jobs/{farm.submit()['id']}/cancel"
    problem(farm.call.post(path, json={"force": True}), 422, "invalid-input")
    assert farm.call.get(f"/v1/jobs/{path.split('/')[3]}").json()["state"] == "waiting"


def test_wrong_methods_name_the_right_ones(farm: Farm) -> None:
    answer = farm.call.put("/v1/jobs", json={})
    assert "GET, POST" in problem(answer, 405, "method-not-allowed")["detail"]
    assert answer.headers["allow"] == "GET, POST"


def test_an_unforeseen_failure_tells_its_request_id_and_nothing_else(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **more: object) -> None:
        raise RuntimeError("secret inside")

    monkeypatch.setattr("farm.repositories.reading.jobs.list_jobs", broken)
    answer = farm.call.get("/v1/jobs", headers={"X-Request-Id": "trace-me"})
    body = problem(answer, 500, "internal-error")
    assert "trace-me" in body["detail"]
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


def test_a_database_that_is_away_is_503_and_says_so(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(self: Database) -> None:
        raise sa.exc.OperationalError("select 1", {}, OSError("connection refused"))

    monkeypatch.setattr(Database, "read", away)
    answer = farm.call.get("/v1/jobs")
    assert "nothing was changed" in problem(answer, 503, "unavailable")["detail"]
    assert answer.headers["retry-after"] == "2"
