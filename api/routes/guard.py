"""The guard of a node, as its agent last told."""

from __future__ import annotations

from fastapi import APIRouter

from api import visible
from api.auth import Reader
from api.models.guard import Guard
from api.route import FarmRoute
from api.services import Use

router = APIRouter(prefix="/v1", route_class=FarmRoute)


@router.get("/nodes/{node}/guard", tags=["machines"])
def read_guard(node: str, use: Use, who: Reader) -> Guard:
    """How far the guard of a node holds the farm back, why, and what each neighbour feels."""
    with use.db.read() as conn:
        found = visible.node(conn, node)
    return Guard.model_validate(found["info"].get("guard") or {})
