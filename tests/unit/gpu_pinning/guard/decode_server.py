"""A language model server as a client sees it: an OpenAI-style stream and a vLLM-style metrics page.

Real HTTP on loopback; what it decodes is nothing but time. ``python -m ...decode_server PORT FOLDER`` runs
it as a process of its own, which takes its interval from the file ``FOLDER/interval_ms`` before each token.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class DecodeServer(ThreadingHTTPServer):
    """Streams a token every ``interval_s`` seconds to whoever asks."""

    daemon_threads = True

    def __init__(self, port: int = 0, folder: Path | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.folder = folder
        self._interval_s = 0.01
        self.others = 1
        """Requests of other users that run, as the page tells."""
        self.page_works = True
        self.streams = 0
        self.steps = 0
        self.hold = threading.Event()
        """Set: no token comes."""

    @property
    def interval_s(self) -> float:
        """Time between two tokens."""
        if self.folder is not None:
            try:
                return float((self.folder / "interval_ms").read_text()) / 1000
            except (OSError, ValueError):
                return self._interval_s
        return self._interval_s

    @interval_s.setter
    def interval_s(self, value: float) -> None:
        self._interval_s = value

    @property
    def url(self) -> str:
        """Its base."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def page(self) -> str:
        """Its metrics page: the lines that matter, and a thousand that do not."""
        noise = "".join(f'vllm:noise_{n}_total{{engine="0"}} {n}.0\n' for n in range(1000))
        return (
            noise
            + f'vllm:num_requests_running{{engine="0"}} {float(self.others + self.streams)}\n'
            + 'vllm:num_requests_waiting{engine="0"} 0.0\n'
            + 'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
            + f'vllm:inter_token_latency_seconds_bucket{{le="0.01"}} {float(self.steps)}\n'
            + f'vllm:inter_token_latency_seconds_bucket{{le="+Inf"}} {float(self.steps)}\n'
        )

    def start(self) -> DecodeServer:
        """Serve on a thread."""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def stop(self) -> None:
        """End."""
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: DecodeServer

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, json.dumps({"data": [{"id": "tiny"}]}))
        elif self.path == "/metrics" and self.server.page_works:
            self._answer(200, self.server.page())
        else:
            self._answer(500 if self.path == "/metrics" else 404, "")

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.server.streams += 1
        due = time.monotonic()
        try:
            while True:
                due = max(due + self.server.interval_s, time.monotonic())
                while self.server.hold.is_set():
                    time.sleep(0.01)
                time.sleep(max(0.0, due - time.monotonic()))
                self.wfile.write(b'data: {"choices": [{"text": "one"}]}\n\n')
                self.wfile.flush()
                self.server.steps += 1
        except OSError:
            self.close_connection = True
        finally:
            self.server.streams -= 1

    def log_message(self, format: str, *args: Any) -> None:
        return


if __name__ == "__main__":
    DecodeServer(int(sys.argv[1]), Path(sys.argv[2])).serve_forever()
