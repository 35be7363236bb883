"""A real HTTP server on a loopback port that answers as a test tells it to, and keeps what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


@dataclass
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Respond = Callable[[BaseHTTPRequestHandler], None]


def answer(status: int, body: bytes = b"{}", **headers: str) -> Respond:
    """A whole answer; header names with ``_`` for ``-``."""

    def respond(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return respond


def cut_off(body: bytes, promised: int, status: int = 200) -> Respond:
    """An answer that promises more bytes than it sends before the connection is closed."""

    def respond(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(promised))
        handler.end_headers()
        handler.wfile.write(body)
        handler.wfile.flush()
        handler.close_connection = True

    return respond


def no_answer(handler: BaseHTTPRequestHandler) -> None:
    """The connection is closed without a word."""
    handler.close_connection = True


def events(text: str) -> Respond:
    """An event stream that ends after ``text``."""

    def respond(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        handler.wfile.write(text.encode())
        handler.close_connection = True

    return respond


@dataclass
class ScriptedServer:
    """Answers the requests in order; the last answer is repeated."""

    script: list[Respond]
    asked: list[Asked] = field(default_factory=list)

    def __enter__(self) -> ScriptedServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                if self.headers.get("Transfer-Encoding") == "chunked":
                    while size := int(self.rfile.readline(), 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                outer.asked.append(Asked(self.command, self.path, dict(self.headers), body))
                step = min(len(outer.asked), len(outer.script)) - 1
                outer.script[step](self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"
