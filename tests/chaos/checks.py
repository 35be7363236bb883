"""What must hold of a farm at any time, checked from rows, and from the store's bytes."""

from __future__ import annotations

import hashlib

import sqlalchemy as sa

from farm import invariants
from farm.db import tables as t
from farm.db.connect import Database
from farm.settings import Settings
from farm.stores import open_store


def check_all(db: Database, settings: Settings) -> None:
    """Fails with the broken invariants: counters, budgets, finishes, and the bytes of every frame."""
    with db.read() as conn:
        found = invariants.check_invariants(conn)
        assert found == [], found
        files = conn.execute(
            sa.select(t.frame_files.c.sha256, t.frame_files.c.bytes, t.frame_files.c.number).distinct()
        ).all()
    store = open_store(settings.resolved_store)
    for file in files:
        with store.open(file.sha256) as reader:
            data = reader.read()
        assert hashlib.sha256(data).hexdigest() == file.sha256, f"frame {file.number} has changed"
        assert len(data) == file.bytes
