"""A real uvicorn over a real socket: event streams, uploads that break off, shutdown with open streams."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from farm import events
from farm.broker.wakes import Wakes
from farm.db import tables as t
from farm.stores.local import LocalStore
from tests.integration.api.conftest import DEADLINE_S, Farm, Running, probe_job, until


@dataclass
class Reader:
    """Messages of an event stream, read by a thread."""

    messages: queue.Queue[tuple[int, str, dict[str, Any]]]
    open: threading.Event
    ended: threading.Event
    comments: list[str]
    whole: bool = False
    """Whether the stream was ended by the server, not cut."""

    def next(self) -> tuple[int, str, dict[str, Any]]:
        return self.messages.get(timeout=DEADLINE_S)


@contextmanager
def reading(running: Running, path: str, **headers: str) -> Iterator[Reader]:
    """A stream in the background; it is open when the block begins."""
    reader = Reader(queue.Queue(), threading.Event(), threading.Event(), [])
    client = running.client()

    def read() -> None:
        try:
            with client.stream("GET", path, headers=headers) as response:
                assert response.status_code == 200
                fields: dict[str, str] = {}
                for line in response.iter_lines():
                    if line.startswith(":"):
                        reader.comments.append(line)
                        reader.open.set()
                    elif line:
                        name, _, value = line.partition(": ")
                        fields[name] = value
                    elif "data" in fields:
                        body = json.loads(fields["data"])
                        reader.messages.put((int(fields.get("id", 0)), fields.get("event", ""), body))
                        fields = {}
                reader.whole = True
        except httpx.TransportError:
            pass  # the server was stopped, or this client was closed
        finally:
            reader.ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        assert reader.open.wait(DEADLINE_S)
        yield reader
    finally:
        # ends every stream, so that the reader's thread ends
        running.stop()
        thread.join(DEADLINE_S)
        client.close()


def test_events_arrive_at_once_and_in_order(running: Running) -> None:
    with reading(running, "/v1/events") as stream:
        with running.client() as client:
            job = client.post("/v1/jobs", json=probe_job()).json()
            _, kind, body = stream.next()
            client.post(f"/v1/jobs/{job['id']}/pause")
            client.post(f"/v1/jobs/{job['id']}/resume")
        assert (kind, body["job_id"], body["project_id"]) == (
            "job.submitted", job["id"], running.farm.projects["default"],
        )  # fmt: skip
        assert body["at"].endswith("Z")
        assert body["data"]["name"] == "a probe"
        assert [stream.next()[2]["data"]["command"] for _ in range(2)] == ["pause", "resume"]


def test_a_stream_resumes_after_the_event_seen_last(running: Running) -> None:
    farm = running.farm
    jobs = [farm.submit(name=f"job {n}")["id"] for n in range(3)]
    with farm.db.read() as conn:
        seen = events.read_after(conn, 0)
    submitted = [event for event in seen if event.type == "job.submitted"]
    with reading(running, "/v1/events", **{"Last-Event-ID": str(submitted[0].id)}) as stream:
        got = [stream.next() for _ in range(len(seen) - seen.index(submitted[0]) - 1)]
    assert [body["job_id"] for _, kind, body in got if kind == "job.submitted"] == jobs[1:]
    assert [number for number, _, _ in got] == [event.id for event in seen[seen.index(submitted[0]) + 1 :]]


def test_a_stream_says_when_what_it_missed_is_not_kept_any_more(running: Running) -> None:
    farm = running.farm
    for number in range(3):
        farm.submit(name=f"job {number}")
    with farm.db.write() as conn:
        first, *_, newest = [event.id for event in events.read_after(conn, 0)]
        conn.execute(t.events.delete().where(t.events.c.id < newest))
    with reading(running, "/v1/events", **{"Last-Event-ID": str(first)}) as stream:
        _, kind, body = stream.next()
        assert (kind, body["after"]) == ("gap", first)
        assert stream.next()[0] == newest


@pytest.mark.parametrize("after", [0, -1])
def test_a_stream_that_missed_nothing_hears_of_no_gap(running: Running, after: int) -> None:
    farm = running.farm
    farm.submit()
    with farm.db.write() as conn:
        seen = [event.id for event in events.read_after(conn, 0)]
        conn.execute(t.events.delete().where(t.events.c.id < seen[-1]))
        assert events.forgotten_after(conn, seen[-1] - 1) is False, "the next one is there"
        assert events.forgotten_after(conn, seen[-1]) is False
    begin = 0 if after == 0 else seen[-1]
    with reading(running, f"/v1/events?after={begin}") as stream:
        farm.submit(name="later")
        kinds = [stream.next()[1] for _ in range(2 if after == 0 else 1)]
    assert "gap" not in kinds


def test_a_key_may_have_only_so_many_streams_open(running: Running) -> None:
    app = running.server.config.app
    app.state.services = replace(  # type: ignore[union-attr]
        app.state.services,  # type: ignore[union-attr]
        settings=running.farm.settings.model_copy(update={"max_streams": 2}),
    )
    with ExitStack() as stack:
        client = stack.enter_context(running.client())
        first = stack.enter_context(client.stream("GET", "/v1/events"))
        stack.enter_context(client.stream("GET", "/v1/events"))
        refused = client.get("/v1/events")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        assert refused.json()["type"] == "urn:stillframe:problem:too-many-streams"
        assert "2 streams" in refused.json()["detail"]
        other = running.client(trust_env=False)
        other.headers["Authorization"] = f"Bearer {running.farm.key('read')}"
        with other.stream("GET", "/v1/events") as response:
            assert response.status_code == 200, "another key has streams of its own"
        other.close()
        first.close()
        farm_feed = app.state.services.feed  # type: ignore[union-attr]
        until(lambda: sum(farm_feed._streams.values()) <= 1, "the closed streams are counted off")
        with client.stream("GET", "/v1/events") as response:
            assert response.status_code == 200
    running.stop()


def test_a_stream_can_begin_at_the_first_event_and_be_filtered(running: Running) -> None:
    farm = running.farm
    first, second = farm.submit()["id"], farm.submit()["id"]
    farm.call.post(f"/v1/jobs/{second}/pause")
    path = f"/v1/events?job={second}&type=job.changed&after=0"
    with reading(running, path) as stream:
        _, kind, body = stream.next()
        assert (kind, body["job_id"]) == ("job.changed", second)
        farm.call.post(f"/v1/jobs/{first}/pause")
        farm.call.post(f"/v1/jobs/{second}/resume")
        assert stream.next()[2]["data"]["command"] == "resume"


def test_a_key_of_one_project_hears_of_that_project_alone(running: Running) -> None:
    farm = running.farm
    running.secret = farm.key("read", project="other")
    with reading(running, "/v1/events") as stream:
        farm.slot()
        farm.submit(project="default")
        mine = farm.submit(project="other")["id"]
        assert stream.next()[2]["job_id"] == mine


def test_events_of_another_process_wake_the_stream_through_the_broker(running: Running) -> None:
    """The row is written by somebody else, who wakes "events" as schedulers and slots do."""
    farm = running.farm
    other = Wakes(farm.redis_url)
    with reading(running, "/v1/events") as stream:
        with farm.db.write() as conn:
            events.emit(conn, "audit", data={"n": 1})
        other.wake("events")
        assert stream.next()[2]["data"] == {"n": 1}
        # and without any wake, by looking once a second
        with farm.db.write() as conn:
            events.emit(conn, "audit", data={"n": 2})
        assert stream.next()[2]["data"] == {"n": 2}
    other.close()


def test_no_event_is_missed_while_many_writers_commit_out_of_order(running: Running) -> None:
    farm = running.farm
    writers, each = 4, 25

    def write(writer: int) -> None:
        for number in range(each):
            with farm.db.write() as conn:
                events.emit(conn, "audit", data={"writer": writer, "number": number})
                if number % 5 == writer:
                    time.sleep(0.01)

    with reading(running, "/v1/events?type=audit") as stream:
        threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
        for thread in threads:
            thread.start()
        got = [stream.next()[2]["data"] for _ in range(writers * each)]
        for thread in threads:
            thread.join()
        for writer in range(writers):
            numbers = [event["number"] for event in got if event["writer"] == writer]
            assert numbers == list(range(each))


@pytest.mark.parametrize("header", ["abc", "-1", "1.5", str(2**70)])
def test_an_odd_last_event_id_is_refused(farm: Farm, header: str) -> None:
    answer = farm.call.get("/v1/events", headers={"Last-Event-ID": header})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["in"] == "header"


def test_open_streams_end_when_the_server_is_told_to_stop(running: Running) -> None:
    farm = running.farm
    _, slot_id = farm.slot()
    job = farm.submit(spec={"steps": [{"name": "probe", "tasks": 1}]})
    attempt_id = farm.claim(slot_id, job["id"])[0].attempt_id
    farm.write_log(attempt_id, b"hello\n")
    with running.client() as tail, tail.stream("GET", f"/v1/attempts/{attempt_id}/log/live") as response:
        lines = response.iter_lines()
        assert any('"hello' in line for line in lines)
        with reading(running, "/v1/events") as stream:
            running.stop()
            assert stream.ended.wait(DEADLINE_S)
            # a stream that uvicorn cuts off after its grace has no last chunk
            assert stream.whole
        assert not any("data" in line for line in lines)


def test_an_upload_that_breaks_off_leaves_nothing(running: Running) -> None:
    farm = running.farm
    assert isinstance(farm.store, LocalStore)
    temporary = farm.store.folder / "tmp"
    with socket.create_connection(("127.0.0.1", running.port)) as raw:
        head = (
            f"PUT /v1/assets/{'0' * 64} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50000000\r\n"
            f"Authorization: Bearer {running.secret}\r\n\r\n"
        )
        raw.sendall(head.encode() + os.urandom(3_000_000))
        until(lambda: any(temporary.iterdir()), "the upload to begin")
    until(lambda: not any(temporary.iterdir()), "what was written to be removed")
    assert list(farm.store.iter_hashes()) == []
    with running.client() as client:
        assert client.get("/healthz").status_code == 200


def test_an_upload_of_many_megabytes_is_streamed_and_verified(running: Running) -> None:
    block = os.urandom(1 << 20)
    digest = hashlib.sha256(block * 40).hexdigest()
    with running.client() as client:
        answer = client.put(f"/v1/assets/{digest}", content=(block for _ in range(40)))
        assert (answer.status_code, answer.json()["bytes"]) == (201, 40 << 20)
        part = client.get(f"/v1/assets/{digest}", headers={"Range": f"bytes={(40 << 20) - 5}-"})
        assert part.content == block[-5:]


def test_a_body_over_the_limit_is_refused_before_it_is_sent_whole(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port)) as raw:
        raw.settimeout(DEADLINE_S)
        head = (
            "POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
            f"Content-Type: application/json\r\nAuthorization: Bearer {running.secret}\r\n\r\n"
        )
        raw.sendall(head.encode())
        for _ in range(3):
            raw.sendall(b"%x\r\n" % 100_000 + b"x" * 100_000 + b"\r\n")
        assert b" 413 " in raw.recv(200)


def test_a_request_without_a_host_is_refused(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port)) as raw:
        raw.settimeout(DEADLINE_S)
        raw.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert b" 421 " in raw.recv(200) or b" 400 " in raw.recv(200)


def test_no_server_software_is_told(running: Running) -> None:
    with running.client() as client:
        assert "server" not in client.get("/healthz").headers


def test_a_stream_ends_when_its_key_is_revoked(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    farm = running.farm
    monkeypatch.setattr("api.routes.events.RECHECK_S", 0.1)
    running.secret = farm.key("read")
    with reading(running, "/v1/events") as stream:
        with farm.db.write() as conn:
            fingerprint = farm.keyring.fingerprint(running.secret)
            conn.execute(sa.update(t.keys).where(t.keys.c.hmac == fingerprint).values(revoked_at=1.0))
        assert stream.ended.wait(DEADLINE_S)


def test_a_quiet_stream_has_heartbeats(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.sse.HEARTBEAT_S", 0.1)
    with reading(running, "/v1/events") as stream:
        until(lambda: len(stream.comments) >= 3, "heartbeats")
