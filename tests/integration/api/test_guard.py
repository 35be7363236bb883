"""The guard's status: told by the agent, served by a route of its own, and kept out of the node's rows."""

from __future__ import annotations

import time
from typing import Any

from tests.integration.api.conftest import Farm
from workers import guard_rows


def told(**neighbour: Any) -> dict[str, Any]:
    first = {"name": "llm", "role": "decode", "condition": "serving", "rung": "pause", "itl_p99_ms": 12.5}
    curve = [[-0.5, 9.0, 12.5, 11.0], [-0.25, None, None, 11.0]]
    shown = [first | {"curve": curve, "reason": "20.0% of decode steps over budget"} | neighbour]
    return {
        "at": time.time(),
        "rung": "pause",
        "reason": "guard: llm",
        "cpu_share": 0.01,
        "neighbours": shown,
    }


def test_a_node_without_neighbours_has_an_empty_guard(farm: Farm) -> None:
    farm.slot()
    guard = farm.call.get("/v1/nodes/n1/guard").json()
    assert (guard["at"], guard["rung"], guard["neighbours"]) == (None, "free", [])
    assert farm.call.get("/v1/nodes/none/guard").status_code == 404


def test_what_the_agent_tells_is_served_and_kept_out_of_the_nodes_own_info(farm: Farm) -> None:
    node_id, _ = farm.slot()
    with farm.db.write() as conn:
        guard_rows.show(conn, node_id, told())
    guard = farm.call.get(f"/v1/nodes/{node_id}/guard").json()
    neighbour = guard["neighbours"][0]
    assert (guard["rung"], neighbour["name"], neighbour["rung"]) == ("pause", "llm", "pause")
    assert neighbour["curve"][1] == [-0.25, None, None, 11.0]
    assert "guard" not in farm.call.get("/v1/nodes/n1").json()["info"]
    assert all("guard" not in node["info"] for node in farm.call.get("/v1/nodes").json()["items"])


def test_holds_are_the_guards_own_and_say_why(farm: Farm) -> None:
    _, slot_id = farm.slot()
    with farm.db.write() as conn:
        guard_rows.hold_slots(conn, [slot_id], "guard: llm: 20 % of steps over budget")
    slot = farm.call.get(f"/v1/slots/{slot_id}").json()
    assert (slot["state"], slot["hold_reason"]) == ("held", "guard: llm: 20 % of steps over budget")
    job = farm.submit()
    reasons = farm.call.get(f"/v1/jobs/{job['id']}/why").json()["items"]
    assert any("20 % of steps over budget" in reason["text"] for reason in reasons), reasons
    with farm.db.write() as conn:
        guard_rows.release_slots(conn, [slot_id])
    assert farm.call.get(f"/v1/slots/{slot_id}").json()["state"] == "idle"


def test_a_hold_for_another_reason_is_left_alone(farm: Farm) -> None:
    from farm.lifecycle.machines import set_slot_state

    _, slot_id = farm.slot()
    with farm.db.write() as conn:
        set_slot_state(conn, slot_id, "held", "its GPU is in use")
        guard_rows.release_slots(conn, [slot_id])
    assert farm.call.get(f"/v1/slots/{slot_id}").json()["state"] == "held"
    with farm.db.write() as conn:
        set_slot_state(conn, slot_id, "dead")
        guard_rows.hold_slots(conn, [slot_id], "guard: x")
    assert farm.call.get(f"/v1/slots/{slot_id}").json()["state"] == "dead"
