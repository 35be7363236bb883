"""An application over a real database, store and broker, people with keys, and a slot played by hand."""

from __future__ import annotations

import hashlib
import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from api.app import create_app
from api.server import Server, make_server
from farm.attempt_logs import log_path
from farm.broker.wakes import Wakes
from farm.db.connect import Database
from farm.ids import new_id
from farm.keyring import Keyring
from farm.lifecycle import claim, dispatch, finish, machines, publish
from farm.records import (
    ArtifactRecord,
    AttemptReport,
    ClaimedTask,
    FrameFileRecord,
    FrameRecord,
    Ticket,
)
from farm.repositories.reading import people
from farm.repositories.reading.work import list_tasks
from farm.settings import Settings
from farm.states import AttemptState
from farm.stores import Store, open_store

BASE = "http://127.0.0.1:8630"
DEADLINE_S = 60.0


@dataclass
class Farm:
    """One farm under test. ``call`` is a client with an admin key; ``as_`` makes clients of other people."""

    settings: Settings
    db: Database
    store: Store
    redis_url: str
    call: TestClient
    keyring: Keyring
    people: dict[str, str] = field(default_factory=dict)
    projects: dict[str, str] = field(default_factory=dict)

    def key(self, *scopes: str, user: str = "ada", project: str | None = None) -> str:
        """A new key's secret."""
        with self.db.write() as conn:
            secret, _ = self.keyring.make_key(
                conn,
                name="test",
                scopes=scopes,
                user_id=self.people[user],
                project_id=self.projects[project] if project else None,
            )
        return secret

    def as_(self, *scopes: str, user: str = "ada", project: str | None = None) -> TestClient:
        """A client with a key of its own, on the same running application."""
        client = TestClient(self.call.app, base_url=BASE)
        client.headers["Authorization"] = f"Bearer {self.key(*scopes, user=user, project=project)}"
        return client

    def upload(self, data: bytes) -> str:
        """Upload an asset; its hash."""
        sha256 = hashlib.sha256(data).hexdigest()
        assert self.call.put(f"/v1/assets/{sha256}", content=data).status_code in (200, 201)
        return sha256

    def submit(self, client: TestClient | None = None, **more: Any) -> dict[str, Any]:
        """Submit a probe job; what the API answered."""
        answer = (client or self.call).post("/v1/jobs", json=probe_job(**more))
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    @contextmanager
    def listening(self, channel: str) -> Iterator[Wakes]:
        """A listener that knows the channel, with nothing waiting for it."""
        listener = Wakes(self.redis_url)
        try:
            listener.wait(channel, 0.5)  # the first wait on a channel only makes it known
            yield listener
        finally:
            listener.close()

    # --- a node agent and its slot, played by hand ----------------------------------------------------

    def slot(self, node: str = "n1") -> tuple[str, str]:
        """A node with one ready slot: their ids."""
        with self.db.write() as conn:
            node_id = machines.register_node(conn, node, {"cpu": 2}, new_id("node"))
            slot_id = machines.register_slot(conn, node_id, "s1", ["render"], {"kind": "cpu"})
            machines.slot_ready(conn, slot_id, "inc1", 4711)
        return node_id, slot_id

    def claim(self, slot_id: str, job_id: str, limit: int = 1) -> list[ClaimedTask]:
        """Dispatch ready tasks of a job to the slot and claim them."""
        with self.db.write() as conn:
            ready = [task["id"] for task in list_tasks(conn, job_id=job_id, states=["ready"], limit=limit)]
            ticket: Ticket | None = dispatch.dispatch(conn, slot_id, ready)
            assert ticket is not None
        with self.db.write() as conn:
            return claim.claim(conn, ticket, slot_id, "inc1", 30.0)

    def picture(self, number: int, take: int = 1, size: tuple[int, int] = (64, 36)) -> FrameRecord:
        """A frame whose file is in the store."""
        pixels = np.full((size[1], size[0], 3), (number * 3 % 256, take * 40 % 256, 128), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        sha256, length = self.store.put_stream([buffer.getvalue()])
        file = FrameFileRecord(
            "probe.png", sha256, length, size[0], size[1], ["R", "G", "B"], "uint8", "srgb", "png"
        )
        return FrameRecord(number, take, [file], started_at=1_764_500_000.0, duration_s=0.5)

    def finish(
        self,
        slot_id: str,
        task: ClaimedTask,
        frames: list[FrameRecord] | None = None,
        artifacts: list[ArtifactRecord] | None = None,
        state: AttemptState = AttemptState.DONE,
        permanent: bool = False,
    ) -> None:
        """Publish frames and report the end of an attempt."""
        with self.db.write() as conn:
            if frames:
                assert publish.publish_frames(conn, task.task_id, task.epoch, task.attempt_id, frames)
            report = AttemptReport(
                task.task_id,
                task.epoch,
                task.attempt_id,
                state,
                ended_at=1_764_500_001.0,
                frames=frames or [],
                artifacts=artifacts or [],
                permanent=permanent,
                error="it broke" if state is AttemptState.FAILED else None,
            )
            assert finish.finish(conn, report, slot_id, None) == "counted"

    def write_log(self, attempt_id: str, data: bytes, mode: str = "ab") -> Path:
        """Append bytes to an attempt's log."""
        path = log_path(self.settings.logs, attempt_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write(data)
        return path


def probe_job(**more: Any) -> dict[str, Any]:
    """The body of a probe job: two tasks of two frames each, unless told otherwise."""
    spec = more.pop("spec", {"steps": [{"name": "probe", "tasks": 2, "frames": 2}]})
    return {"kind": "probe", "name": "a probe", "project": "default", "spec": spec, **more}


@pytest.fixture
def farm(
    db: Database, redis_url: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Farm]:
    """A running application with the users ada and ben, and the projects default and other."""
    monkeypatch.setenv("FARM_EXTRA_KINDS", "probe=tests.kinds.probe")
    settings = settings.model_copy(update={"max_body": 200_000, "max_tasks": 500, "max_frames": 6000})
    store = open_store(str(tmp_path / "store"))
    wakes = Wakes(redis_url)
    keyring = Keyring.open(settings)
    with db.write() as conn:
        users = {name: people.make_user(conn, name)["id"] for name in ("ada", "ben")}
        projects = {name: people.make_project(conn, {"name": name})["id"] for name in ("default", "other")}
    app = create_app(settings, db, store, wakes)
    with TestClient(app, base_url=BASE) as client:
        farm = Farm(settings, db, store, redis_url, client, keyring, users, projects)
        client.headers["Authorization"] = f"Bearer {farm.key('admin')}"
        yield farm
    wakes.close()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for: {what}"
        time.sleep(0.02)


@dataclass
class Running:
    """A server on a port of its own, in a thread."""

    farm: Farm
    server: Server
    thread: threading.Thread
    port: int
    secret: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **more: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.secret}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=DEADLINE_S, **more)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


@pytest.fixture
def running(farm: Farm) -> Iterator[Running]:
    wakes = Wakes(farm.redis_url)
    app = create_app(farm.settings, farm.db, farm.store, wakes)
    server = make_server(app, "127.0.0.1:0", log_level="warning")
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    until(lambda: server.started, "the server to start")
    found = Running(farm, server, thread, listener.getsockname()[1], farm.key("admin"))
    yield found
    found.stop()
    listener.close()
    wakes.close()
