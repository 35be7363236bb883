"""The OpenAPI document is kept to: generated requests to every operation give no 5xx and only documented
answers, with real ids in half of them so that they reach past the 404s."""

from __future__ import annotations

import hashlib
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from farm.records import ArtifactRecord
from tests.integration.api.conftest import Farm

EXAMPLES = 6
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
ENDLESS = {"/v1/events", "/v1/attempts/{attempt_id}/log/live"}


def real_things(farm: Farm) -> dict[str, list[Any]]:
    """Ids of things that are there, by the name of the path parameter."""
    node_id, slot_id = farm.slot()
    asset = farm.upload(b"an asset")
    jobs = [farm.submit(name=f"job {n}", assets={"a": asset}) for n in range(4)]
    task = farm.claim(slot_id, jobs[0]["id"])[0]
    film = b"film" * 1000
    sha256, size = farm.store.put_stream([film])
    assert sha256 == hashlib.sha256(film).hexdigest()
    artifact = ArtifactRecord("film.mp4", sha256, size, "video/mp4")
    farm.finish(slot_id, task, [farm.picture(1), farm.picture(2)], [artifact])
    farm.write_log(task.attempt_id, b"a log\n\xff\0\n")
    artifacts = farm.call.get(f"/v1/jobs/{jobs[0]['id']}/artifacts").json()["items"]
    keys = farm.call.get("/v1/keys").json()["items"]
    spare = farm.call.post("/v1/keys", json={"name": "spare", "scopes": ["read"]}).json()
    assert keys[0]["id"] != spare["id"]
    return {
        "job_id": [job["id"] for job in jobs],
        "step_id": [job["steps"][0]["id"] for job in jobs],
        "task_id": [task.task_id],
        "attempt_id": [task.attempt_id],
        "artifact_id": [artifacts[0]["id"]],
        "node": [node_id, "n1"],
        "slot_id": [slot_id],
        "name": ["render"],
        "project": ["default", farm.projects["other"]],
        "user": ["ada"],
        # never the key that the test itself uses
        "key_id": [spare["id"]],
        "sha256": [asset],
        "take": [1],
        "number": [1, 2, 3],
        "output": ["probe.png"],
    }


def test_every_operation_answers_as_documented(farm: Farm) -> None:
    document = farm.call.get("/openapi.json").json()
    for path in ENDLESS:
        document["paths"].pop(path)
    schema = schemathesis.openapi.from_dict(document)
    things = real_things(farm)
    called: set[str] = set()
    statuses: set[int] = set()

    def check(operation: Any) -> None:
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(), real=st.booleans(), pick=st.integers(0, 1000))
        def run(case: Any, real: bool, pick: int) -> None:
            if real:
                known = {
                    n: things[n][pick % len(things[n])] for n in case.path_parameters or {} if n in things
                }
                case.path_parameters = {**(case.path_parameters or {}), **known}
            wanted = case.as_transport_kwargs(base_url="http://127.0.0.1:8630")
            try:
                sent = requests.Request(**{k: v for k, v in wanted.items() if k in _TAKEN}).prepare()
                body = sent.body if sent.body is not None else b""
                headers = {k: v for k, v in sent.headers.items() if k.lower() not in _OURS}
                answer = farm.call.request(sent.method or "", sent.url or "", content=body, headers=headers)
            except (UnicodeError, requests.RequestException, httpx.InvalidURL):
                return  # no client can even send it
            statuses.add(answer.status_code)
            case.validate_response(answer, checks=CHECKS)

        run()

    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.method.lower() == "delete" and operation.path == "/v1/session":
            continue
        check(operation)
        called.add(f"{operation.method.upper()} {operation.path}")
    assert len(called) >= 60
    assert {200, 201, 404, 422} <= statuses
    # the farm is still whole
    assert farm.call.get("/v1/jobs").status_code == 200


_TAKEN = {"method", "url", "headers", "params", "json", "data", "files"}
_OURS = {"authorization", "cookie", "host", "content-length"}


def test_the_document_has_examples_and_names_every_door(farm: Farm) -> None:
    document = farm.call.get("/openapi.json").json()
    submit = document["paths"]["/v1/jobs"]["post"]
    example = submit["requestBody"]["content"]["application/json"]["examples"]["turntable"]["value"]
    assert example["kind"] == "render"
    assert set(document["components"]["securitySchemes"]) == {"key", "session"}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation.get("description") or operation.get("summary"), (method, path)
            assert "default" in operation["responses"], (method, path)
            assert "HTTPValidationError" not in str(operation["responses"]), (method, path)


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_no_page_that_loads_scripts_from_elsewhere(farm: Farm, path: str) -> None:
    assert farm.call.get(path).status_code == 404
