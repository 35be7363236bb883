"""The probe against a real HTTP server that streams events on loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest

from gpu_pinning.guard.probe import Gap, ProbeOptions, StreamProbe


class Server(ThreadingHTTPServer):
    daemon_threads = True
    interval = 0.01
    status = 200
    events = 40
    body: bytes | None = None
    """Sent instead of events, and the connection closed."""
    requests: list[dict[str, Any]]
    headers_seen: list[dict[str, str]]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append(json.loads(body))
        self.server.headers_seen.append(dict(self.headers.items()))
        self.send_response(self.server.status)
        self.send_header("Content-Type", "text/event-stream")
        if self.server.body is not None:
            self.close_connection = True
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(self.server.body)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for index in range(self.server.events):
                time.sleep(self.server.interval if index else 0.05)
                self._chunk(b'data: {"choices": [{"text": "one"}]}\n\n')
            self._chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            return

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server(("127.0.0.1", 0), Handler)
    running.requests, running.headers_seen = [], []
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()


def options(server: Server, **more: Any) -> ProbeOptions:
    return ProbeOptions(f"http://127.0.0.1:{server.server_address[1]}", "tiny", **more)


def gather(probe: StreamProbe, count: int) -> list[Gap]:
    gaps: list[Gap] = []
    deadline = time.monotonic() + 20
    while len(gaps) < count and time.monotonic() < deadline:
        gaps += probe.take()
        time.sleep(0.01)
    return gaps


def test_gaps_are_those_between_tokens_and_the_first_token_is_left_out(server: Server) -> None:
    server.interval = 0.02
    probe = StreamProbe(options(server))
    probe.start()
    gaps = gather(probe, 30)
    probe.stop()
    assert len(gaps) >= 30
    middle = sorted(gap.seconds for gap in gaps)[len(gaps) // 2]
    # a busy machine may make them longer, nothing makes them shorter
    assert 0.018 < middle < 0.5
    assert all(a.at < b.at for a, b in pairwise(gaps))


def test_a_stream_that_ends_is_asked_for_again(server: Server) -> None:
    server.events = 10
    probe = StreamProbe(options(server))
    probe.start()
    gather(probe, 25)
    probe.stop()
    assert len(server.requests) >= 3
    assert server.requests[0]["stream"] is True and server.requests[0]["ignore_eos"] is True


def test_chat_endpoint_and_key_are_sent_as_the_server_wants_them(server: Server) -> None:
    probe = StreamProbe(options(server, path="/v1/chat/completions", api_key="secret"))
    probe.start()
    gather(probe, 3)
    probe.stop()
    assert server.requests[0]["messages"][0]["role"] == "user"
    assert server.headers_seen[0]["Authorization"] == "Bearer secret"


def test_a_refusal_is_said_and_clears_when_the_stream_comes(server: Server) -> None:
    server.status = 503
    probe = StreamProbe(options(server))
    probe.start()
    deadline = time.monotonic() + 10
    while probe.error is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert probe.error is not None and "503" in probe.error
    server.status = 200
    assert gather(probe, 3)
    assert probe.error is None
    probe.stop()


def test_a_server_that_is_not_there_is_said() -> None:
    probe = StreamProbe(ProbeOptions("http://127.0.0.1:9", "tiny"))
    probe.start()
    deadline = time.monotonic() + 10
    while probe.error is None and time.monotonic() < deadline:
        time.sleep(0.01)
    probe.stop()
    assert probe.error is not None and "127.0.0.1:9" in probe.error


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="should look like"):
        ProbeOptions(url, "m")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": "no stream here"}', 'without a token: \'{"error": "no stream here"}\''),
        (b"data: [DONE]\n\n", "without a token"),
        (b"z" * (2 << 20), "without the end of a head or a line"),
    ],
    ids=["no stream", "an empty stream", "a line without end"],
)
def test_an_answer_without_tokens_is_a_failure_and_not_asked_for_at_once(
    server: Server, body: bytes, words: str
) -> None:
    server.body = body
    probe = StreamProbe(options(server))
    probe.start()
    deadline = time.monotonic() + 20
    while probe.error is None and time.monotonic() < deadline:
        time.sleep(0.01)
    # it waits half a second before it asks again; at once would be hundreds of times until then
    time.sleep(0.2)
    probe.stop()
    assert probe.error is not None and words in probe.error
    assert len(server.requests) <= 2 and probe.take() == []


def test_a_server_whose_answers_end_after_a_token_is_asked_seldom(server: Server) -> None:
    server.events = 1
    probe = StreamProbe(options(server))
    began = time.monotonic()
    probe.start()
    try:
        while len(server.requests) < 3:
            assert time.monotonic() - began < 20
            time.sleep(0.01)
        # the third comes no sooner than two pauses after the first
        assert time.monotonic() - began >= 2 * 0.5 - 0.05
    finally:
        probe.stop()
