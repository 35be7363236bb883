"""Nodes, slots, pools, buffers and byte budgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from api import pages, versions, visible
from api.auth import Operator, Reader, not_found
from api.models.common import Page
from api.models.machines import Budget, Buffer, Node, Pool, PoolChange, Slot
from api.pages import Cursor, Limit
from api.problems import invalid_parameter
from api.route import FarmRoute
from api.services import Use
from api.versions import IfMatch
from farm.lifecycle import machines as lifecycle
from farm.repositories.reading import machines, people, work

router = APIRouter(prefix="/v1", route_class=FarmRoute)

NodeStates = Annotated[list[Literal["up", "draining", "drained", "down"]], Query(alias="state")]
SlotStates = Annotated[
    list[Literal["starting", "idle", "busy", "held", "draining", "dead"]], Query(alias="state")
]
BufferStates = Annotated[
    list[Literal["reserved", "filled", "draining", "released", "orphaned"]], Query(alias="state")
]
Medium = Annotated[Literal["vram", "pinned", "shm", "spool", "store"] | None, Query()]
Purpose = Annotated[
    Literal["frame staging", "checkpoint", "weights", "dataset"] | None, Query(description="What it is for")
]
NodeName = Annotated[str | None, Query(max_length=200, description="Name or id of a node")]
_CHANGED: dict[int | str, dict[str, Any]] = {
    412: {"description": "It changed"},
    428: {"description": "No tag"},
}


@router.get("/nodes", tags=["machines"])
def list_nodes(
    use: Use,
    who: Reader,
    state: NodeStates = [],  # noqa: B006 - FastAPI copies defaults
    limit: Limit = pages.DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Node]:
    """Machines, by name."""
    position = pages.decode("nodes", cursor, [str])
    with use.db.read() as conn:
        rows = machines.list_nodes(conn, states=state, position=position, limit=limit + 1)
    rows, following = pages.page("nodes", rows, limit, lambda node: [node["name"]])
    return Page[Node](items=[Node.model_validate(node) for node in rows], next=following)


@router.get("/nodes/{node}", tags=["machines"])
def read_node(node: str, use: Use, who: Reader) -> Node:
    """One machine, by id or name."""
    with use.db.read() as conn:
        return Node.model_validate(visible.node(conn, node))


@router.post("/nodes/{node}/drain", tags=["machines"])
def drain_node(node: str, use: Use, who: Operator) -> Node:
    """Let a node take no new work and park what runs, so that it can be serviced."""
    who.require_whole_farm("draining a node")
    with use.db.write() as conn:
        node_id = visible.node(conn, node)["id"]
        lifecycle.drain_node(conn, node_id)
        found = Node.model_validate(visible.node(conn, node_id))
    use.wake(f"node.{node_id}", "scheduler")
    return found


@router.post("/nodes/{node}/resume", tags=["machines"])
def resume_node(node: str, use: Use, who: Operator) -> Node:
    """Let a drained node work again."""
    who.require_whole_farm("resuming a node")
    with use.db.write() as conn:
        node_id = visible.node(conn, node)["id"]
        lifecycle.resume_node(conn, node_id)
        found = Node.model_validate(visible.node(conn, node_id))
    use.wake(f"node.{node_id}", "scheduler")
    return found


@router.get("/slots", tags=["machines"])
def list_slots(
    use: Use,
    who: Reader,
    node: NodeName = None,
    state: SlotStates = [],  # noqa: B006 - FastAPI copies defaults
    limit: Limit = pages.DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Slot]:
    """Slots by node and name, with the tasks that they hold."""
    position = pages.decode("slots", cursor, [str, str])
    with use.db.read() as conn:
        node_id = visible.node(conn, node)["id"] if node is not None else None
        rows = machines.list_slots(conn, node_id=node_id, states=state, position=position, limit=limit + 1)
        held = work.tasks_of_slots(conn, [slot["id"] for slot in rows], who.project_id)
    rows, following = pages.page("slots", rows, limit, lambda slot: [slot["node"], slot["name"]])
    return Page[Slot](items=[_slot(slot, held) for slot in rows], next=following)


@router.get("/slots/{slot_id}", tags=["machines"])
def read_slot(slot_id: str, use: Use, who: Reader) -> Slot:
    """One slot with the tasks that it holds."""
    with use.db.read() as conn:
        found = machines.get_slot(conn, slot_id)
        if found is None:
            not_found("slot", slot_id)
        return _slot(found, work.tasks_of_slots(conn, [slot_id], who.project_id))


def _slot(row: Mapping[str, Any], held: Mapping[str, list[str]]) -> Slot:
    return Slot.model_validate({**row, "task_ids": held.get(row["id"], [])})


@router.get("/pools", tags=["machines"])
def list_pools(
    use: Use, who: Reader, limit: Limit = pages.DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[Pool]:
    """Pools by name, with their load."""
    position = pages.decode("pools", cursor, [str])
    with use.db.read() as conn:
        rows = [pool for pool in machines.list_pools(conn) if not position or pool["name"] > position[0]]
    rows_page, following = pages.page("pools", rows, limit, lambda pool: [pool["name"]])
    return Page[Pool](items=[Pool.model_validate(pool) for pool in rows_page], next=following)


@router.get("/pools/{name}", tags=["machines"])
def read_pool(name: str, use: Use, who: Reader, response: Response) -> Pool:
    """One pool."""
    with use.db.read() as conn:
        pool = _pool(conn, name)
    versions.tag(response, pool.version)
    return pool


@router.patch("/pools/{name}", tags=["machines"], responses=_CHANGED)
def change_pool(
    name: str, body: PoolChange, use: Use, who: Operator, response: Response, if_match: IfMatch = None
) -> Pool:
    """Pause a pool or cap how many slots it uses at once."""
    who.require_whole_farm("changing a pool")
    version = versions.expected(if_match)
    values = body.model_dump(exclude_unset=True)
    if values.get("paused", False) is None:
        raise invalid_parameter("body", "paused", "paused is true or false")
    with use.writing("scheduler") as conn:
        _pool(conn, name)
        people.change_pool(conn, name, values, version)
        pool = _pool(conn, name)
    versions.tag(response, pool.version)
    return pool


def _pool(conn: Any, name: str) -> Pool:
    found = next((pool for pool in machines.list_pools(conn) if pool["name"] == name), None)
    if found is None:
        not_found("pool", name)
    return Pool.model_validate(found)


@router.get("/buffers", tags=["machines"])
def list_buffers(
    use: Use,
    who: Reader,
    node: NodeName = None,
    medium: Medium = None,
    purpose: Purpose = None,
    state: BufferStates = [],  # noqa: B006 - FastAPI copies defaults
    job: Annotated[str | None, Query(max_length=48, description="Only buffers of this job")] = None,
    limit: Limit = pages.DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Buffer]:
    """Buffers, newest first."""
    position = pages.decode("buffers", cursor, [float, str])
    with use.db.read() as conn:
        node_id = visible.node(conn, node)["id"] if node is not None else None
        if job is not None:
            visible.job(conn, who, job)
        rows = machines.list_buffers(
            conn,
            node_id=node_id,
            medium=medium,
            purpose=purpose,
            states=state,
            job_id=job,
            project_id=who.project_id,
            position=position,
            limit=limit + 1,
        )
    rows, following = pages.page("buffers", rows, limit, lambda row: [row["created_at"], row["id"]])
    return Page[Buffer](items=[Buffer.model_validate(row) for row in rows], next=following)


@router.get("/buffers/{buffer_id}", tags=["machines"])
def read_buffer(buffer_id: str, use: Use, who: Reader) -> Buffer:
    """One buffer."""
    with use.db.read() as conn:
        found = machines.get_buffer(conn, buffer_id, who.project_id)
    if found is None:
        not_found("buffer", buffer_id)
    return Buffer.model_validate(found)


@router.get("/budgets", tags=["machines"])
def list_budgets(
    use: Use, who: Reader, node: NodeName = None, limit: Limit = pages.DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[Budget]:
    """How many bytes of each medium a node may hold, and holds."""
    position = pages.decode("budgets", cursor, [str, str])
    with use.db.read() as conn:
        node_id = visible.node(conn, node)["id"] if node is not None else None
        rows = machines.list_budgets(conn, node_id=node_id, position=position, limit=limit + 1)
    rows, following = pages.page("budgets", rows, limit, lambda row: [row["node_id"], row["medium"]])
    return Page[Budget](items=[Budget.model_validate(row) for row in rows], next=following)
