"""Idempotency-Key: once, replayed, mismatched, in flight, given back after a failure, and over restarts."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from api import submitting
from farm import idempotency
from farm.db import tables as t
from farm.idempotency import STALE_S
from tests.integration.api.conftest import Farm, probe_job, until

KEY = {"Idempotency-Key": "submit-1"}


def jobs(farm: Farm) -> int:
    with farm.db.read() as conn:
        return int(conn.scalar(sa.select(sa.func.count()).select_from(t.jobs)) or 0)


def kept(farm: Farm) -> list[dict[str, Any]]:
    with farm.db.read() as conn:
        return [dict(row) for row in conn.execute(sa.select(t.idempotency)).mappings()]


def test_the_same_submission_twice_makes_one_job_and_one_answer(farm: Farm) -> None:
    first = farm.call.post("/v1/jobs", json=probe_job(), headers=KEY)
    second = farm.call.post("/v1/jobs", json=probe_job(), headers=KEY)
    assert (first.status_code, second.status_code) == (201, 201)
    assert second.json() == first.json()
    assert second.headers["location"] == first.headers["location"]
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert jobs(farm) == 1


def test_the_same_key_with_another_body_is_refused_and_changes_nothing(farm: Farm) -> None:
    farm.call.post("/v1/jobs", json=probe_job(), headers=KEY)
    answer = farm.call.post("/v1/jobs", json=probe_job(name="another"), headers=KEY)
    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:stillframe:problem:idempotency-mismatch"
    assert "new key" in answer.json()["detail"]
    assert jobs(farm) == 1
    other_path = farm.call.post("/v1/jobs/validate", json=probe_job(), headers=KEY)
    assert other_path.json()["type"] == "urn:stillframe:problem:idempotency-mismatch"


def test_keys_of_two_callers_do_not_meet(farm: Farm) -> None:
    farm.call.post("/v1/jobs", json=probe_job(), headers=KEY)
    ben = farm.as_("submit", user="ben")
    assert ben.post("/v1/jobs", json=probe_job(name="his"), headers=KEY).status_code == 201
    assert jobs(farm) == 2


def test_two_at_once_make_one_job(farm: Farm) -> None:
    clients = [farm.as_("submit") for _ in range(2)]
    secret = clients[0].headers["Authorization"]
    answers: list[Any] = []
    gate = threading.Barrier(6)

    def go(client: Any) -> None:
        gate.wait()
        answers.append(client.post("/v1/jobs", json=probe_job(), headers={**KEY, "Authorization": secret}))

    threads = [threading.Thread(target=go, args=(clients[n % 2],)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert jobs(farm) == 1
    assert {answer.status_code for answer in answers} <= {201, 409}
    made = [answer.json()["id"] for answer in answers if answer.status_code == 201]
    assert made
    assert len(set(made)) == 1


def test_a_request_in_flight_is_409(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()
    original = submitting.measure

    def slow(*args: Any) -> Any:
        entered.set()
        assert leave.wait(30)
        return original(*args)

    monkeypatch.setattr(submitting, "measure", slow)
    answers: list[Any] = []

    def ask() -> None:
        answers.append(farm.call.post("/v1/jobs/validate", json=probe_job(), headers=KEY))

    first = threading.Thread(target=ask)
    first.start()
    assert entered.wait(30)
    second = farm.call.post("/v1/jobs/validate", json=probe_job(), headers=KEY)
    leave.set()
    first.join()
    assert second.status_code == 409
    assert second.json()["type"] == "urn:stillframe:problem:still-answering"
    assert second.headers["retry-after"] == "1"
    assert answers[0].status_code == 200
    ask()
    assert answers[1].headers["idempotency-replayed"] == "true"


def test_a_refused_request_gives_its_key_back(farm: Farm) -> None:
    assert farm.call.post("/v1/jobs", json=probe_job(priority=900), headers=KEY).status_code == 422
    assert kept(farm) == []
    assert farm.call.post("/v1/jobs", json=probe_job(), headers=KEY).status_code == 201


def test_a_crash_between_job_and_answer_cannot_double_the_job(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is kept in the transaction that makes the job; what follows may fail."""

    def crash(*args: object) -> None:
        raise RuntimeError("killed after the commit")

    with monkeypatch.context() as patch:
        patch.setattr("api.versions.tag", crash)
        assert farm.call.post("/v1/jobs", json=probe_job(), headers=KEY).status_code == 500
    assert jobs(farm) == 1
    again = farm.call.post("/v1/jobs", json=probe_job(), headers=KEY)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (201, "true")
    assert jobs(farm) == 1


def test_a_claim_whose_process_died_is_taken_over(farm: Farm) -> None:
    farm.call.post("/v1/users", json={"name": "x"}, headers=KEY)
    with farm.db.write() as conn:
        conn.execute(
            sa.update(t.idempotency).values(status=None, seen_at=t.idempotency.c.seen_at - STALE_S - 1)
        )
        conn.execute(sa.delete(t.users).where(t.users.c.name == "x"))
    assert farm.call.post("/v1/users", json={"name": "x"}, headers=KEY).status_code == 201


def test_a_request_that_is_answered_for_long_stays_claimed(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is old by its beginning, but its process goes on renewing it."""
    monkeypatch.setattr(idempotency, "RENEW_S", 0.05)
    original = submitting.measure

    def slow(*args: Any) -> Any:
        with farm.db.write() as conn:
            before = sa.update(t.idempotency).values(
                created_at=0.0 + t.idempotency.c.created_at - 50, seen_at=1.0
            )
            conn.execute(before)
        until(lambda: kept(farm)[0]["seen_at"] > 1.0, "the claim is renewed")
        seen.append(farm.call.post("/v1/jobs/validate", json=probe_job(), headers=KEY).status_code)
        return original(*args)

    seen: list[int] = []
    monkeypatch.setattr(submitting, "measure", slow)
    assert farm.call.post("/v1/jobs/validate", json=probe_job(), headers=KEY).status_code == 200
    assert seen == [409]


def test_a_request_whose_claim_was_taken_over_makes_no_job(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was only slow, not dead: what it does must not stand beside what the second one did."""
    original = submitting.check

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(submitting, "check", original)
        with farm.db.write() as conn:
            conn.execute(sa.update(t.idempotency).values(seen_at=1.0))
        second.append(farm.call.post("/v1/jobs", json=probe_job(), headers=KEY))
        return original(*args)

    second: list[Any] = []
    monkeypatch.setattr(submitting, "check", overtaken)
    first = farm.call.post("/v1/jobs", json=probe_job(), headers=KEY)
    assert second[0].status_code == 201
    assert first.status_code == 409
    assert first.json()["type"] == "urn:stillframe:problem:still-answering"
    assert jobs(farm) == 1
    assert farm.call.post("/v1/jobs", json=probe_job(), headers=KEY).json() == second[0].json()


def test_a_key_is_forgotten_after_its_time(farm: Farm) -> None:
    farm.call.post("/v1/users", json={"name": "x"}, headers=KEY)
    with farm.db.write() as conn:
        conn.execute(sa.update(t.idempotency).values(created_at=1.0))
    assert farm.call.post("/v1/users", json={"name": "y"}, headers=KEY).status_code == 201


def test_no_secret_is_kept_for_a_replay(farm: Farm) -> None:
    body = {"name": "k", "scopes": ["read"]}
    first = farm.call.post("/v1/keys", json=body, headers=KEY).json()
    second = farm.call.post("/v1/keys", json=body, headers=KEY).json()
    assert first["secret"].startswith("sfk_")
    assert second == {**first, "secret": None}
    assert first["secret"] not in str(kept(farm))


def test_an_upload_form_is_replayed_and_compared_by_its_files(farm: Farm) -> None:
    first = farm.call.post("/v1/assets", files={"f": ("a", b"1")}, headers=KEY)
    again = farm.call.post("/v1/assets", files={"f": ("a", b"1")}, headers=KEY)
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert farm.call.post("/v1/assets", files={"f": ("a", b"2")}, headers=KEY).status_code == 409


@pytest.mark.parametrize("key", ["", "x" * 256, "é".encode("latin-1"), "a\tb"])
def test_an_odd_key_is_refused(farm: Farm, key: Any) -> None:
    answer = farm.call.post("/v1/jobs", json=probe_job(), headers={"Idempotency-Key": key})
    assert answer.status_code == 422
    assert jobs(farm) == 0


def test_every_post_takes_a_key(farm: Farm) -> None:
    document = farm.call.get("/openapi.json").json()
    posts = [path for path, operations in document["paths"].items() if "post" in operations]
    assert len(posts) >= 15
    job_id = farm.submit()["id"]
    for path in posts:
        if path == "/v1/session":
            continue
        where = path.replace("{job_id}", job_id).replace("{", "").replace("}", "")
        answers = [
            farm.call.post(where, json={}, headers={"Idempotency-Key": f"odd{chr(233)}".encode("latin-1")})
        ]
        # an odd key is refused by every one of them, so every one of them looks at it
        assert answers[0].status_code in (422, 415), path
