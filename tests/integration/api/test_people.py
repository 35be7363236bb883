"""Projects, users and keys."""

from __future__ import annotations

import pytest

from tests.integration.api.conftest import Farm


def test_a_project_is_made_changed_and_found_by_name(farm: Farm) -> None:
    made = farm.call.post("/v1/projects", json={"name": "film", "share": 2, "max_slots": 4})
    assert made.status_code == 201, made.text
    project = made.json()
    assert made.headers["location"] == f"/v1/projects/{project['id']}"
    assert farm.call.get("/v1/projects/film").json() == project
    assert (project["share"], project["max_slots"], project["quota_slot_s"]) == (2.0, 4, None)
    path = f"/v1/projects/{project['id']}"
    changed = farm.call.patch(path, json={"max_slots": None, "share": 0.5}, headers={"If-Match": '"1"'})
    assert (changed.json()["max_slots"], changed.json()["share"], changed.json()["version"]) == (None, 0.5, 2)
    assert farm.call.patch(path, json={"share": 1}, headers={"If-Match": '"1"'}).status_code == 412
    assert farm.call.patch(path, json={"share": 1}).status_code == 428
    taken = farm.call.patch(path, json={"name": "default"}, headers={"If-Match": "*"})
    assert taken.status_code == 409
    assert farm.call.post("/v1/projects", json={"name": "film"}).status_code == 409
    names = [p["name"] for p in farm.call.get("/v1/projects").json()["items"]]
    assert names == ["default", "film", "other"]


@pytest.mark.parametrize(
    "body", [{}, {"name": "x", "share": 0}, {"name": "x", "share": -1}, {"name": "x", "max_slots": -1},
             {"name": "x", "quota_slot_s": -5}, {"name": "  "}, {"name": "x", "owner": "me"}],
)  # fmt: skip
def test_a_bad_project_is_refused(farm: Farm, body: dict[str, object]) -> None:
    answer = farm.call.post("/v1/projects", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"]


def test_users_are_made_once(farm: Farm) -> None:
    made = farm.call.post("/v1/users", json={"name": "cleo"})
    assert made.status_code == 201
    assert farm.call.get("/v1/users/cleo").json() == made.json()
    assert farm.call.post("/v1/users", json={"name": "cleo"}).status_code == 409
    assert [u["name"] for u in farm.call.get("/v1/users").json()["items"]] == ["ada", "ben", "cleo"]


def test_a_key_is_shown_once_and_works_until_it_is_revoked(farm: Farm) -> None:
    body = {"name": "laptop", "scopes": ["submit", "read"], "user": "ben", "project": "other"}
    made = farm.call.post("/v1/keys", json=body)
    assert made.status_code == 201
    key = made.json()
    assert (key["scopes"], key["user_id"], key["project_id"]) == (
        ["read", "submit"], farm.people["ben"], farm.projects["other"],
    )  # fmt: skip
    assert key["secret"].endswith(key["hint"])
    client = farm.as_("read")
    client.headers["Authorization"] = f"Bearer {key['secret']}"
    session = client.get("/v1/session").json()
    assert (session["user"], session["project_id"], session["csrf"]) == ("ben", farm.projects["other"], None)
    assert client.get(f"/v1/keys/{key['id']}").json()["name"] == "laptop"
    shown = farm.call.get(f"/v1/keys/{key['id']}")
    assert "secret" not in shown.json()
    assert shown.json()["used_at"] is not None
    assert key["secret"] not in farm.call.get("/v1/keys").text
    assert farm.call.delete(f"/v1/keys/{key['id']}").status_code == 204
    assert client.get("/v1/session").status_code == 401
    revoked = farm.call.get("/v1/keys", params={"revoked": "true"}).json()["items"]
    assert [k["id"] for k in revoked] == [key["id"]]


def test_a_key_of_one_project_makes_keys_of_that_project_alone(farm: Farm) -> None:
    client = farm.as_("admin", project="other")
    assert client.post("/v1/keys", json={"name": "k", "scopes": ["admin"]}).status_code == 403
    assert (
        client.post("/v1/keys", json={"name": "k", "scopes": ["read"], "project": "default"}).status_code
        == 404
    )
    made = client.post("/v1/keys", json={"name": "k", "scopes": ["read"], "project": "other"})
    assert made.status_code == 201
    assert {k["project_id"] for k in client.get("/v1/keys").json()["items"]} == {farm.projects["other"]}
    assert client.post("/v1/projects", json={"name": "mine"}).status_code == 403


@pytest.mark.parametrize("scopes", [[], ["root"], "read", ["read", 1]])
def test_odd_scopes_are_refused(farm: Farm, scopes: object) -> None:
    answer = farm.call.post("/v1/keys", json={"name": "k", "scopes": scopes})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith("/scopes")
