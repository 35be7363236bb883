"""One continuous stream from a neighbour's OpenAI-style endpoint: a time stamp for every token.

Server histograms are too coarse for a quarter of a second (vLLM's first bucket ends at 10 ms). The probe is
one request that streams a completion and is asked again when it ends; the gaps between its events are what
a user of the server feels. It runs on the farm's cores and uses only the standard library: a socket, read by
one thread. The kernel stamps what arrives (``SO_TIMESTAMPNS``), so that a reader that comes late, because it
waits for a core or for the interpreter, does not make the neighbour look slow; over TLS, where the kernel's
stamps cannot be had, the reader's clock serves.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

_CONNECT_S = 5.0
_STOP_WAIT_S = 0.1
_SILENCE_S = 30.0
_RETRY_S = (0.5, 1.0, 2.0, 5.0)
_SELDOM_S = 0.5
"""From one request to the next at least: a server whose answers end after a token would have many."""
_MOST_UNREAD = 2**20
"""Bytes of a head or a line that has no end; a token's event has a few hundred."""
_SO_TIMESTAMPNS = 35
_STAMP = struct.Struct("qq")


@dataclass(frozen=True, slots=True)
class Gap:
    """Time between two tokens of the stream: when it ended (monotonic seconds) and how long it was."""

    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """What the probe asks for. ``url`` is the server's base (``http://127.0.0.1:8000``)."""

    url: str
    model: str
    path: str = "/v1/completions"
    prompt: str = "Count upwards from one, in words, without stopping:"
    max_tokens: int = 2048
    api_key: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"probe url {self.url!r} should look like http://127.0.0.1:8000")

    def request(self) -> bytes:
        """The bytes of one request."""
        parts = urlsplit(self.url)
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            # otherwise the stream would end when the model thinks that it has said enough
            "ignore_eos": True,
        }
        if self.path.endswith("/chat/completions"):
            body["messages"] = [{"role": "user", "content": self.prompt}]
        else:
            body["prompt"] = self.prompt
        payload = json.dumps(body).encode()
        lines = [
            f"POST {parts.path.rstrip('/')}{self.path} HTTP/1.1",
            f"Host: {_host(parts)}",
            "Content-Type: application/json",
            "Accept: text/event-stream",
            "Connection: close",
            f"Content-Length: {len(payload)}",
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + payload


def _host(parts: SplitResult) -> str:
    name = parts.hostname or ""
    name = f"[{name}]" if ":" in name else name
    return f"{name}:{parts.port}" if parts.port else name


class StreamProbe:
    """Keeps one stream open on a thread of its own; :meth:`take` hands out the gaps since the last call."""

    def __init__(self, options: ProbeOptions) -> None:
        self.options = options
        self.error: str | None = None
        """Why there is no stream at the moment; ``None`` while tokens arrive."""
        self.refused = False
        """Nobody listens at the address."""
        self.token_at: float | None = None
        """When the present stream's last token came (monotonic); ``None`` before its first."""
        self.kernel_stamps = False
        self._gaps: deque[Gap] = deque(maxlen=100_000)
        self.started_at = 0.0
        self._stop = threading.Event()
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="neighbour-probe", daemon=True)

    def start(self) -> None:
        """Begin to stream."""
        self.started_at = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Close the stream; the server sees the client go and stops decoding for it.

        Does not wait for a thread that is just connecting: it ends by itself, and no token of it is read.
        """
        self._stop.set()
        connection = self._socket
        if connection is not None:
            # it may have closed on its own in the meantime
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(_STOP_WAIT_S)

    def take(self) -> list[Gap]:
        """The gaps that ended since the last call, in order."""
        taken = []
        while self._gaps:
            taken.append(self._gaps.popleft())
        return taken

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._stream()
                failures = 0
                self._stop.wait(max(0.0, began + _SELDOM_S - time.monotonic()))
            except (OSError, ValueError) as error:
                self.error = f"{self.options.url}: {error}"
                self.refused = isinstance(error, ConnectionRefusedError)
                self._stop.wait(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
                failures += 1

    def _stream(self) -> None:
        parts = urlsplit(self.options.url)
        secure = parts.scheme == "https"
        address = (parts.hostname or "", parts.port or (443 if secure else 80))
        with socket.create_connection(address, timeout=_CONNECT_S) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = (
                ssl.create_default_context().wrap_socket(plain, server_hostname=parts.hostname)
                if secure
                else plain
            )
            connection.settimeout(_SILENCE_S)
            self._socket = connection
            self.kernel_stamps = not secure and _ask_for_stamps(plain)
            try:
                connection.sendall(self.options.request())
                self._read(connection)
            finally:
                self._socket = None
                self.token_at = None

    def _read(self, connection: socket.socket) -> None:
        buffer = b""
        head_read = False
        previous: float | None = None
        while not self._stop.is_set():
            if len(buffer) > _MOST_UNREAD:
                raise ValueError(f"the server sent {len(buffer)} bytes without the end of a head or a line")
            chunk, now, stamp = self._receive(connection)
            if not chunk:
                if not head_read:
                    raise ValueError("the server closed the connection without an answer")
                _expect_tokens(previous, buffer)
                return
            buffer += chunk
            if not head_read:
                head, found, rest = buffer.partition(b"\r\n\r\n")
                if not found:
                    continue
                status = head.split(b"\r\n", 1)[0].decode("latin-1")
                if " 200" not in status:
                    raise ValueError(f"the server answered {status!r}: {rest[:200].decode(errors='replace')}")
                head_read, buffer = True, rest
            # whole lines only; chunk sizes of the transfer encoding are lines too, and are no events
            *lines, buffer = buffer.split(b"\n")
            events = [line.strip() for line in lines if line.startswith(b"data:")]
            tokens = [event for event in events if event != b"data: [DONE]"]
            if tokens:
                # what came together has one stamp and is one step; the first token waited for the prompt
                if previous is not None and stamp > previous:
                    self._gaps.append(Gap(now, stamp - previous))
                previous = stamp
                self.token_at = now
                self.error, self.refused = None, False
            if len(tokens) < len(events):
                _expect_tokens(previous, b"")
                return

    def _receive(self, connection: socket.socket) -> tuple[bytes, float, float]:
        """What came, when on the monotonic clock, and a stamp that is good for differences."""
        if not self.kernel_stamps:
            chunk = connection.recv(65536)
            now = time.monotonic()
            return chunk, now, now
        chunk, notes, _, _ = connection.recvmsg(65536, 64)
        now = time.monotonic()
        for level, kind, data in notes:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS) and len(data) == _STAMP.size:
                seconds, nanoseconds = _STAMP.unpack(data)
                stamp = seconds + nanoseconds / 1e9
                # wall clock: its being set makes one odd gap, no more
                return chunk, now, stamp
        # a kernel that took the option and stamps nothing, or the end
        return chunk, now, time.time()


def _expect_tokens(previous: float | None, rest: bytes) -> None:
    """An answer without tokens is a failure: asked again at once, it would be asked for without end."""
    if previous is None:
        said = rest[:200].decode(errors="replace").strip()
        raise ValueError("the server's answer ended without a token" + (f": {said!r}" if said else ""))


def _ask_for_stamps(connection: socket.socket) -> bool:
    try:
        connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True
