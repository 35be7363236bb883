"""Collection on real databases and a real store: what is named stays, what is young stays, the rest goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy as sa

from farm import gc
from farm.db.connect import Database, db_now
from farm.db.tables import (
    artifacts,
    buffers,
    contents,
    events,
    frame_files,
    frames,
    idempotency,
    job_assets,
    keys,
    tasks,
    web_sessions,
)
from farm.ids import new_id
from farm.settings import Settings
from farm.stores.local import LocalStore
from tests.integration.farm.scheduler.world import make_job, make_node, make_project, make_user


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def age(store: LocalStore, sha256: str) -> None:
    path = store.path(sha256)
    assert path is not None
    os.utime(path, (0, 0))


def put(conn: sa.Connection, store: LocalStore, data: bytes, *, old: bool = True) -> str:
    """Contents with their row, last touched long ago or just now."""
    sha256, size = store.put_stream([data])
    touched = 0.0 if old else db_now()
    conn.execute(contents.insert().values(sha256=sha256, bytes=size, created_at=0.0, touched_at=touched))
    if old:
        age(store, sha256)
    return sha256


def names(db: Database, store: LocalStore) -> tuple[set[str], set[str]]:
    with db.read() as conn:
        return set(conn.scalars(sa.select(contents.c.sha256))), set(store.iter_hashes())


def test_unreferenced_old_contents_go_and_the_young_stay(
    db: Database, store: LocalStore, settings: Settings
) -> None:
    with db.write() as conn:
        put(conn, store, b"old")
        young = put(conn, store, b"young", old=False)
    tried = gc.collect(db, store, settings, dry_run=True)
    assert (tried.contents, tried.bytes, tried.dry_run) == (1, 3, True)
    assert len(names(db, store)[0]) == 2
    done = gc.collect(db, store, settings)
    assert (done.contents, done.bytes, done.strays) == (1, 3, 0)
    assert names(db, store) == ({young}, {young})


def test_everything_that_a_row_names_stays(db: Database, store: LocalStore, settings: Settings) -> None:
    with db.write() as conn:
        job_id, step_id, (task_id, *_) = make_job(conn, make_project(conn), 2)
        frame, artifact, asset, parked, buffered = (
            put(conn, store, data) for data in (b"frame", b"film", b"scene", b"latents", b"weights")
        )
        place = {"step_id": step_id, "take": 1, "number": 1}
        conn.execute(
            frames.insert().values(
                **place, job_id=job_id, task_id=task_id, state="published", is_current=True
            )
        )
        conn.execute(
            frame_files.insert().values(
                **place, output="beauty.png", sha256=frame, bytes=5, width=1, height=1, channels=["r"],
                dtype="uint8", color_space="srgb", format="png",
            )
        )  # fmt: skip
        conn.execute(
            artifacts.insert().values(
                id=new_id("art"), job_id=job_id, step_id=step_id, task_id=task_id, attempt_id="a", name="n",
                sha256=artifact, bytes=4, media_type="video/mp4", meta={}, created_at=0.0,
            )
        )  # fmt: skip
        conn.execute(job_assets.insert().values(job_id=job_id, path="scene.xml", sha256=asset))
        conn.execute(tasks.update().where(tasks.c.id == task_id).values(checkpoint=parked))
        buffer = {
            "id": new_id("buf"), "node_id": make_node(conn), "medium": "store", "purpose": "weights",
            "bytes": 7, "state": "filled", "sha256": buffered, "created_at": 0.0, "changed_at": 0.0,
        }  # fmt: skip
        conn.execute(buffers.insert().values(buffer))
    kept = {frame, artifact, asset, parked, buffered}
    assert gc.collect(db, store, settings).contents == 0
    assert names(db, store) == (kept, kept)
    with db.write() as conn:
        conn.execute(buffers.update().values(state="released"))
        conn.execute(tasks.update().values(checkpoint=None))
    assert gc.collect(db, store, settings).contents == 2
    assert names(db, store)[1] == {frame, artifact, asset}


def test_bytes_of_fenced_attempts_and_remains_of_uploads_go(
    db: Database, store: LocalStore, settings: Settings
) -> None:
    with db.write() as conn:
        _, _, (task_id,) = make_job(conn, make_project(conn), 1)
        checkpoint, _ = store.put_stream([b"checkpoint without a row of contents"])
        age(store, checkpoint)
        conn.execute(tasks.update().where(tasks.c.id == task_id).values(checkpoint=checkpoint))
    stray, _ = store.put_stream([b"stray"])
    age(store, stray)
    fresh, _ = store.put_stream([b"fresh"])
    left = store.folder / "tmp" / "left"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    assert gc.collect(db, store, settings, dry_run=True).strays == 1
    done = gc.collect(db, store, settings)
    assert (done.strays, done.bytes, done.temporary) == (1, 5, 1)
    assert set(store.iter_hashes()) == {fresh, checkpoint}


def test_content_put_again_during_the_collection_stays(
    db: Database, store: LocalStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is gone already when the same bytes are put again: the bytes must survive."""
    with db.write() as conn:
        sha256 = put(conn, store, b"again")
    delete = store.delete

    def put_then_delete(name: str, untouched_s: float = 0.0) -> bool:
        store.put_stream([b"again"])
        return delete(name, untouched_s)

    monkeypatch.setattr(store, "delete", put_then_delete)
    gc.collect(db, store, settings)
    assert set(store.iter_hashes()) == {sha256}


def test_more_contents_than_a_batch(
    sqlite_db: Database, store: LocalStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "_BATCH", 7)
    with sqlite_db.write() as conn:
        for i in range(20):
            put(conn, store, b"%d" % i)
    strays = [store.put_stream([b"stray %d" % i])[0] for i in range(16)]
    for sha256 in strays:
        age(store, sha256)
    done = gc.collect(sqlite_db, store, settings)
    assert (done.contents, done.strays) == (20, 16)
    assert names(sqlite_db, store) == (set(), set())


def test_reference_that_appears_meanwhile_keeps_its_content_and_no_other(
    db: Database, store: LocalStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check finds nothing, yet the row is named when it is deleted: the foreign key decides."""
    with db.write() as conn:
        job_id, _, _ = make_job(conn, make_project(conn), 1)
        named, free = put(conn, store, b"named"), put(conn, store, b"free")
        conn.execute(job_assets.insert().values(job_id=job_id, path="a", sha256=named))
    monkeypatch.setattr(gc, "_unreferenced", lambda min_age_s: [sa.true()])
    with db.write() as conn:
        assert gc._delete_rows(conn, [named, free], 0.0) == {free}
    assert names(db, store)[0] == {named}


def test_old_records_are_forgotten(db: Database, settings: Settings) -> None:
    with db.write() as conn:
        old = {"at": 0.0, "type": "guard", "data": {}}
        conn.execute(events.insert(), [old, {"at": 9e12, "type": "guard", "data": {}}])
        answer = {"key_id": "k", "method": "POST", "path": "/", "body_sha256": "0" * 64}
        conn.execute(
            idempotency.insert(),
            [
                answer | {"idempotency_key": "old", "created_at": 0.0},
                answer | {"idempotency_key": "new", "created_at": 9e12},
            ],
        )
        key = new_id("key")
        conn.execute(
            keys.insert().values(
                id=key, name="k", hmac="0" * 64, hint="x", scopes=[], user_id=make_user(conn), created_at=0.0
            )
        )
        session = {"hmac": "1" * 64, "csrf": "c", "key_id": key, "created_at": 0.0, "expires_at": 1.0}
        conn.execute(web_sessions.insert().values(id=new_id("sess"), **session))
        assert gc.forget_old(conn, settings) == {"events": 1, "answers": 1, "sessions": 1}
        assert gc.forget_old(conn, settings) == {"events": 0, "answers": 0, "sessions": 0}
