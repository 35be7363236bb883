from __future__ import annotations

import json

import pytest

from farm.client.credentials import Credentials
from farm.client.transport import Transport
from farm.errors import (
    Conflict,
    InvalidFrameRange,
    InvalidInput,
    NotFound,
    StillAnswering,
    Unauthenticated,
    Unavailable,
)
from tests.unit.farm.client.scripted_server import ScriptedServer, answer, no_answer


def transport(server: ScriptedServer, waits: list[float] | None = None) -> Transport:
    return Transport(Credentials(server.url, "sfk_secret"), sleep=(waits if waits is not None else []).append)


def test_the_key_goes_in_the_authorization_header_and_nowhere_else() -> None:
    with ScriptedServer([answer(200)]) as server:
        transport(server).request("GET", "/v1/jobs", params={"state": "running", "project": None})
    [asked] = server.asked
    assert asked.headers["Authorization"] == "Bearer sfk_secret"
    assert asked.path == "/v1/jobs?state=running"


@pytest.mark.parametrize("trouble", [answer(503), answer(502), answer(429), no_answer])
def test_a_read_is_repeated_until_the_farm_answers(trouble: object) -> None:
    waits: list[float] = []
    with ScriptedServer([trouble, trouble, answer(200, b'{"ok": 1}')]) as server:  # type: ignore[list-item]
        found = transport(server, waits).request("GET", "/v1/jobs").json()
    assert found == {"ok": 1}
    assert len(server.asked) == 3
    assert len(waits) == 2


def test_a_post_is_repeated_with_the_same_idempotency_key() -> None:
    with ScriptedServer([no_answer, answer(503), answer(201)]) as server:
        transport(server).post("/v1/jobs", json={"name": "a"})
    keys = {asked.headers["Idempotency-Key"] for asked in server.asked}
    assert len(server.asked) == 3
    assert len(keys) == 1
    assert {asked.body for asked in server.asked} == {b'{"name":"a"}'}


def test_a_change_without_an_idempotency_key_is_sent_once() -> None:
    with ScriptedServer([answer(503)]) as server, pytest.raises(Unavailable):
        transport(server).request("PATCH", "/v1/jobs/job_1", json={"priority": 3})
    assert len(server.asked) == 1


def test_it_gives_up_after_its_retries() -> None:
    with ScriptedServer([answer(503)]) as server, pytest.raises(Unavailable):
        transport(server).request("GET", "/v1/jobs")
    assert len(server.asked) == 5


def test_a_change_that_broke_off_is_sent_again_through_a_restart_with_the_same_key() -> None:
    """The first try was lost on its way; then the farm is restarting, then the old claim stands a while."""
    waiting = problem(409, "still-answering")
    waits: list[float] = []
    words: list[str] = []
    script = [no_answer, *[answer(503)] * 6, *[waiting] * 6, answer(201, b'{"id": "job_1"}')]
    with ScriptedServer(script) as server:  # type: ignore[arg-type]
        client = Transport(Credentials(server.url, "k"), sleep=waits.append, say=words.append)
        assert client.post("/v1/jobs", json={"name": "a"}).json() == {"id": "job_1"}
    assert len(server.asked) == 14
    assert len({asked.headers["Idempotency-Key"] for asked in server.asked}) == 1
    [word] = words
    assert "sending the same request again for up to 60 s" in word


def test_waiting_for_the_first_request_ends_after_a_minute() -> None:
    waits: list[float] = []
    words: list[str] = []
    still = problem(409, "still-answering")
    with ScriptedServer([still]) as server, pytest.raises(StillAnswering):  # type: ignore[list-item]
        Transport(Credentials(server.url, "k"), sleep=waits.append, say=words.append).post("/v1/jobs")
    assert 60 <= sum(waits) < 70
    assert words == ["the farm is still answering this request; waiting up to 60 s"]


def test_another_conflict_is_not_waited_for() -> None:
    with ScriptedServer([problem(409, "conflict")]) as server, pytest.raises(Conflict):  # type: ignore[list-item]
        transport(server).post("/v1/jobs")
    assert len(server.asked) == 1


def test_retry_after_says_how_long_to_wait() -> None:
    waits: list[float] = []
    with ScriptedServer([answer(503, Retry_After="7"), answer(200)]) as server:
        transport(server, waits).request("GET", "/v1/jobs")
    assert waits == [7.0]


def test_a_farm_that_is_not_there_is_named_with_the_way_out() -> None:
    nowhere = Transport(Credentials("http://127.0.0.1:9", "k"), retries=0)
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:9 .*farm up.*FARM_URL"):
        nowhere.request("GET", "/v1/jobs")


def problem(status: int, slug: str, **more: object) -> object:
    body = {"type": f"urn:stillframe:problem:{slug}", "title": "t", "status": status, "detail": "why", **more}
    return answer(status, json.dumps(body).encode(), Content_Type="application/problem+json")


@pytest.mark.parametrize(
    ("status", "slug", "kind"),
    [
        (404, "not-found", NotFound),
        (409, "conflict", Conflict),
        (401, "unauthenticated", Unauthenticated),
        (418, "never-heard-of", Exception),
        (404, "from-a-newer-farm", NotFound),
    ],
)
def test_problems_come_back_as_the_error_that_the_farm_raised(
    status: int, slug: str, kind: type[Exception]
) -> None:
    with ScriptedServer([problem(status, slug)]) as server, pytest.raises(kind, match="why"):  # type: ignore[list-item]
        transport(server).request("GET", "/v1/jobs")


def test_bad_fields_and_positions_come_back_too() -> None:
    faults = [{"in": "body", "pointer": "/spec/frames", "message": "the end comes before the start"}]
    script = problem(422, "invalid-frame-range", errors=faults, position=2)
    with ScriptedServer([script]) as server, pytest.raises(InvalidFrameRange) as caught:  # type: ignore[list-item]
        transport(server).post("/v1/jobs")
    assert caught.value.position == 2
    assert [(fault.pointer, fault.message) for fault in caught.value.faults] == [
        ("/spec/frames", "the end comes before the start")
    ]


def test_an_error_page_that_is_no_json_still_becomes_an_error() -> None:
    page = answer(422, b"<html>proxy</html>")
    with ScriptedServer([page]) as server, pytest.raises(InvalidInput, match="GET /v1/jobs answered 422"):
        transport(server).request("GET", "/v1/jobs")
