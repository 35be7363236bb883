"""What a person is told when the database fails a request: what is wrong, and whether waiting helps."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api import problems


@pytest.mark.parametrize(
    ("reason", "status", "slug"),
    [
        ("database is locked", 503, "unavailable"),
        ("database or disk is full", 507, "out-of-space"),
        ("no such column: projects.reserved", 500, "internal-error"),
    ],
)
def test_a_database_error_says_whether_waiting_helps(reason: str, status: int, slug: str) -> None:
    app = FastAPI()
    problems.install(app)

    @app.get("/")
    def fail() -> None:
        raise sa.exc.OperationalError("SELECT 1", {}, Exception(reason))

    answer = TestClient(app).get("/")
    assert answer.status_code == status
    assert answer.json()["type"] == f"urn:stillframe:problem:{slug}"
    assert ("Retry-After" in answer.headers) == (status == 503)
