"""Nodes, slots, pools, buffers, budgets, health, metrics, kinds and garbage."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from farm import ledger
from farm.broker.wakes import Wakes
from tests.integration.api.conftest import Farm


def test_nodes_and_slots_are_shown_with_what_they_do(farm: Farm) -> None:
    node_id, slot_id = farm.slot()
    job = farm.submit()
    task = farm.claim(slot_id, job["id"])[0]
    node = farm.call.get("/v1/nodes").json()["items"][0]
    assert (node["id"], node["name"], node["state"], node["slots"]) == (node_id, "n1", "up", {"busy": 1})
    assert farm.call.get("/v1/nodes/n1").json()["id"] == node_id
    slot = farm.call.get("/v1/slots", params={"node": "n1", "state": "busy"}).json()["items"][0]
    assert (slot["id"], slot["node"], slot["pools"], slot["task_ids"]) == (
        slot_id,
        "n1",
        ["render"],
        [task.task_id],
    )
    assert farm.call.get(f"/v1/slots/{slot_id}").json()["pid"] == 4711
    assert farm.call.get("/v1/slots", params={"state": "idle"}).json()["items"] == []
    assert farm.call.get("/v1/slots", params={"state": "asleep"}).status_code == 422
    assert farm.call.get("/v1/slots", params={"node": "n2"}).status_code == 404


def test_draining_and_resuming_wakes_the_node(farm: Farm) -> None:
    node_id, _ = farm.slot()
    with farm.listening(f"node.{node_id}") as agent:
        drained = farm.call.post("/v1/nodes/n1/drain", json={})
        assert drained.json()["state"] == "drained"
        assert agent.wait(f"node.{node_id}", 5.0)
    assert farm.as_("read", "submit").post("/v1/nodes/n1/resume").status_code == 403
    assert farm.as_("operate").post("/v1/nodes/n1/resume").json()["state"] == "up"
    assert farm.call.post("/v1/nodes/n9/drain").status_code == 404


def test_tasks_of_a_paused_job_do_not_count_as_waiting_for_a_pool(farm: Farm) -> None:
    job = farm.submit()
    assert farm.call.get("/v1/pools/render").json()["ready"] == 2
    farm.call.post(f"/v1/jobs/{job['id']}/pause")
    assert farm.call.get("/v1/pools/render").json()["ready"] == 0


def test_pools_show_their_load_and_can_be_paused(farm: Farm) -> None:
    farm.slot()
    farm.submit()
    pool = farm.call.get("/v1/pools").json()["items"][0]
    assert (pool["name"], pool["slots"], pool["ready"], pool["busy"], pool["paused"]) == (
        "render",
        1,
        2,
        0,
        False,
    )
    tag = farm.call.get("/v1/pools/render").headers["etag"]
    changed = farm.call.patch(
        "/v1/pools/render", json={"paused": True, "max_slots": 3}, headers={"If-Match": tag}
    )
    assert (changed.json()["paused"], changed.json()["max_slots"]) == (True, 3)
    assert (
        farm.call.patch("/v1/pools/render", json={"paused": False}, headers={"If-Match": tag}).status_code
        == 412
    )
    assert farm.call.patch("/v1/pools/none", json={}, headers={"If-Match": "*"}).status_code == 404
    assert (
        farm.call.patch("/v1/pools/render", json={"paused": None}, headers={"If-Match": "*"}).status_code
        == 422
    )


def test_buffers_and_budgets_are_shown(farm: Farm) -> None:
    node_id, slot_id = farm.slot()
    job = farm.submit()
    task = farm.claim(slot_id, job["id"])[0]
    with farm.db.write() as conn:
        ledger.set_budget(conn, node_id, "shm", 1000)
        buffer_id = ledger.reserve(
            conn, node_id, slot_id, "shm", 600, "frame staging",
            task_id=task.task_id, attempt_id=task.attempt_id, epoch=task.epoch,
        )  # fmt: skip
    buffer = farm.call.get("/v1/buffers", params={"medium": "shm", "node": "n1"}).json()["items"][0]
    assert (buffer["id"], buffer["bytes"], buffer["state"], buffer["task_id"]) == (
        buffer_id, 600, "reserved", task.task_id,
    )  # fmt: skip
    assert farm.call.get(f"/v1/buffers/{buffer_id}").json() == buffer
    assert farm.call.get("/v1/buffers", params={"job": job["id"]}).json()["items"] == [buffer]
    assert farm.call.get("/v1/buffers", params={"state": "orphaned"}).json()["items"] == []
    budgets = {b["medium"]: b for b in farm.call.get("/v1/budgets").json()["items"]}
    assert (budgets["shm"]["budget_bytes"], budgets["shm"]["reserved_bytes"]) == (1000, 600)
    assert farm.as_("read", project="other").get("/v1/buffers").json()["items"] == []


def test_readiness_tries_database_broker_and_store(farm: Farm) -> None:
    ready = farm.call.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    assert {name: check["ok"] for name, check in ready.json()["checks"].items()} == {
        "database": True, "broker": True, "store": True,
    }  # fmt: skip
    assert list(farm.store.iter_hashes()) == []


def test_readiness_names_what_is_away(farm: Farm) -> None:
    services = farm.call.app.state.services  # type: ignore[attr-defined]
    away = Wakes("redis://127.0.0.1:1/0")
    object.__setattr__(services, "wakes", away)
    try:
        answer = farm.call.get("/readyz")
    finally:
        away.close()
    assert answer.status_code == 503
    checks = answer.json()["checks"]
    assert (checks["broker"]["ok"], checks["database"]["ok"], checks["store"]["ok"]) == (False, True, True)
    assert farm.call.get("/healthz").json() == {"status": "alive"}


def test_metrics_count_what_is_there(farm: Farm) -> None:
    _, slot_id = farm.slot()
    job = farm.submit()
    task = farm.claim(slot_id, job["id"])[0]
    farm.finish(slot_id, task, [farm.picture(1), farm.picture(2)])
    farm.call.get(f"/v1/jobs/{job['id']}")
    families = {f.name: f for f in text_string_to_metric_families(farm.call.get("/metrics").text)}

    def value(name: str, **labels: str) -> float:
        samples = [s for f in families.values() for s in f.samples if s.name == f"stillframe_{name}"]
        return next(s.value for s in samples if all(s.labels.get(k) == v for k, v in labels.items()))

    assert value("jobs", kind="probe", state="running") == 1
    assert value("tasks", pool="render", state="done") == 1
    assert value("queue_tasks", pool="render") == 1
    assert (value("frames", pool="render"), value("frames_published", pool="render")) == (4, 2)
    assert value("slots", node="n1", state="idle") == 1
    assert value("nodes", state="up") == 1
    assert value("queue_oldest_seconds", pool="render") >= 0
    assert value("attempt_queue_seconds", pool="render", quantile="0.5") >= 0
    assert value("http_request_seconds_count", route="/v1/jobs/{job_id}", status="200") == 1
    assert farm.as_("read", project="other").get("/metrics").status_code == 403


def test_kinds_come_with_the_schema_of_their_specs(farm: Farm) -> None:
    kinds = {kind["name"]: kind["spec_schema"] for kind in farm.call.get("/v1/kinds").json()["items"]}
    assert {"probe", "render", "encode"} <= set(kinds)
    assert kinds["probe"]["additionalProperties"] is False


def test_garbage_is_counted_before_it_is_removed(farm: Farm) -> None:
    used, unused = farm.upload(b"used"), farm.upload(b"unused")
    farm.submit(assets={"a": used})
    services = farm.call.app.state.services  # type: ignore[attr-defined]
    object.__setattr__(services, "settings", farm.settings.model_copy(update={"gc_min_age_s": 0.0}))
    counted = farm.call.post("/v1/gc", json={"dry_run": True}).json()
    assert (counted["dry_run"], counted["contents"], counted["bytes"]) == (True, 1, 6)
    assert farm.store.exists(unused)
    assert farm.as_("operate").post("/v1/gc", json={"dry_run": False}).status_code == 403
    removed = farm.call.post("/v1/gc", json={"dry_run": False}).json()
    assert (removed["dry_run"], removed["contents"]) == (False, 1)
    assert farm.store.exists(used)
    assert not farm.store.exists(unused)
