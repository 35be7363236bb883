"""The API killed in the middle of an upload and of a submit: nothing half-made stays."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from farm.client import FarmClient
from farm.client.credentials import Credentials
from farm.db import tables as t
from farm.db.connect import Database
from farm.ids import new_id
from farm.invariants import check_invariants
from farm.keyring import Keyring
from farm.settings import Settings
from farm.stores import open_store
from tests.chaos.farm_under_test import EXTRA_KINDS, ROOT, until

_API = "import sys; sys.argv = ['farm', 'api']; from api.cli.main import main; main()"


class Api:
    """An API process alone, with the key of a user."""

    def __init__(self, settings: Settings) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.settings = settings.model_copy(update={"listen": f"127.0.0.1:{self.port}"})
        self.settings.data.mkdir(parents=True, exist_ok=True)
        self.db = Database(settings.resolved_database_url)
        with self.db.write() as conn:
            user, project = new_id("user"), new_id("proj")
            conn.execute(t.users.insert().values(id=user, name="ada", created_at=time.time()))
            conn.execute(t.projects.insert().values(id=project, name="default", created_at=time.time()))
            self.secret, _ = Keyring.open(self.settings).make_key(
                conn, name="test", scopes=("admin",), user_id=user, project_id=None
            )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        values = self.settings.model_dump()
        env = {**os.environ, "FARM_EXTRA_KINDS": EXTRA_KINDS, "PYTHONPATH": str(ROOT)}
        env |= {f"FARM_{name.upper()}": str(value) for name, value in values.items() if value is not None}
        with (self.settings.data / "api.log").open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-c", _API], env=env, stdout=log, stderr=log)
        until(self._answers, lambda: (self.settings.data / "api.log").read_text()[-3000:])

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.secret}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=60.0)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.settings.data / "api.log").read_text()[-3000:]
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/healthz").status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture
def api(chaos: Settings) -> Iterator[Api]:
    made = Api(chaos)
    try:
        made.start()
        yield made
    finally:
        made.kill()
        made.db.dispose()


def test_an_api_killed_in_the_middle_of_an_upload_keeps_nothing_of_it(api: Api) -> None:
    data = os.urandom(4 << 20)
    sha256 = hashlib.sha256(data).hexdigest()
    store = Path(api.settings.resolved_store)
    head = (
        f"PUT /v1/assets/{sha256} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {api.secret}\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", api.port)) as raw:
        raw.sendall(head.encode() + data[: 3 << 20])
        until(lambda: any(path.stat().st_size for path in (store / "tmp").iterdir()), "the upload has begun")
        api.kill()
    left = open_store(str(store))
    assert list(left.iter_hashes()) == []
    with api.db.read() as conn:
        assert conn.scalar(sa.select(sa.func.count()).select_from(t.contents)) == 0
    api.start()
    with api.client() as client:
        assert client.put(f"/v1/assets/{sha256}", content=data).status_code == 201
        assert client.get(f"/v1/assets/{sha256}").content == data
    # what the broken one wrote goes with the next collection
    assert left.sweep(0.0) == 1
    assert list(left.iter_hashes()) == [sha256]


@pytest.mark.parametrize("after_s", [0.05, 0.4])
def test_an_api_killed_in_the_middle_of_a_submit_stores_the_job_whole_or_not_at_all(
    api: Api, after_s: float
) -> None:
    spec = {"steps": [{"tasks": 20_000, "frames": 1}]}
    body: dict[str, Any] = {"kind": "probe", "name": "wide", "project": "default", "spec": spec}
    payload = httpx.Request("POST", "http://x/v1/jobs", json=body).content
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {api.secret}\r\n"
        f"Idempotency-Key: once\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", api.port)) as raw:
        raw.sendall(head.encode() + payload)
        until(lambda: _claimed(api), "the request is being answered")
        time.sleep(after_s)
        api.kill()
    counts = _counts(api)
    assert counts in ([0, 0], [1, 20_000]), "whole, or not at all"
    api.start()
    # nothing is done to the claim of the process that died: the client waits until it is taken over
    with FarmClient.of(Credentials(f"http://127.0.0.1:{api.port}", api.secret)) as client:
        made = client.submit_body(body, "once")
        assert client.submit_body(body, "once").id == made.id
    assert _counts(api) == [1, 20_000]
    with api.db.read() as conn:
        assert check_invariants(conn) == []


def _claimed(api: Api) -> bool:
    with api.db.read() as conn:
        return conn.scalar(sa.select(t.idempotency.c.key_id)) is not None


def _counts(api: Api) -> list[int]:
    with api.db.read() as conn:
        return [
            conn.scalar(sa.select(sa.func.count()).select_from(table)) or 0 for table in (t.jobs, t.tasks)
        ]
