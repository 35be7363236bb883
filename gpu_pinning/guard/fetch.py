"""A metrics page over HTTP, with bounds on time and size: a neighbour that misbehaves costs us nothing.

Only the standard library, since ``gpu_pinning`` stands alone. No redirects are followed: the operator has
named the server, and nobody else does.
"""

from __future__ import annotations

import http.client
import threading
import time
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from gpu_pinning.guard.servers import Page, Server, read_page, recognise

MAX_BYTES = 8 * 2**20
TIMEOUT_S = 2.0
PATHS = ("/metrics", "/prometheus/metrics")
"""Where servers have their page; TensorRT-LLM's has other things under the first."""
Trouble = Literal["refused", "absent", "failed"]


class PageTrouble(Exception):
    """A page could not be had: nobody listens, there is no such page, or it failed."""

    def __init__(self, kind: Trouble, message: str) -> None:
        self.kind: Trouble = kind
        super().__init__(message)


def fetch(url: str, path: str, *, timeout_s: float = TIMEOUT_S, max_bytes: int = MAX_BYTES) -> str:
    """The text at ``path`` of the server whose base is ``url``, within ``timeout_s`` as a whole.

    Raises :class:`PageTrouble`.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    deadline = time.monotonic() + timeout_s
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", parts.path.rstrip("/") + path, headers={"Accept": "text/plain"})
        answer = connection.getresponse()
        if answer.status == 404:
            raise PageTrouble("absent", f"{url}{path} is not there (404)")
        if answer.status != 200:
            raise PageTrouble("failed", f"{url}{path} answered {answer.status}")
        body = bytearray()
        while chunk := answer.read1(65536):
            body += chunk
            if len(body) > max_bytes:
                raise PageTrouble("failed", f"{url}{path} has over {max_bytes} bytes")
            if time.monotonic() > deadline:
                raise PageTrouble("failed", f"{url}{path} took over {timeout_s:g} s")
        return body.decode("utf-8", "replace")
    except ConnectionRefusedError:
        raise PageTrouble("refused", f"nobody listens at {url}") from None
    except (OSError, http.client.HTTPException) as error:
        raise PageTrouble("failed", f"{url}{path}: {error}") from None
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class Reading:
    """The last try to read a page: when it ended (monotonic seconds), and the page or what was wrong."""

    at: float
    page: Page | None = None
    trouble: Trouble | None = None
    message: str = ""


class PageReader:
    """Reads a server's metrics page about once a second on a thread of its own."""

    def __init__(self, url: str, *, every_s: float = 1.0) -> None:
        self.url = url
        self._every_s = every_s
        self._path: str | None = None
        self._server: Server | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="neighbour-page", daemon=True)
        self.reading: Reading | None = None

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(TIMEOUT_S + 1)

    def look(self) -> Reading:
        """One try, now."""
        trouble = PageTrouble("absent", f"{self.url} has no metrics page that is known here")
        for path in (self._path,) if self._path else PATHS:
            try:
                text = fetch(self.url, path)
            except PageTrouble as error:
                if error.kind != "absent":
                    return Reading(time.monotonic(), None, error.kind, str(error))
                trouble = error
                continue
            server = self._server or recognise(text)
            if server is not None:
                self._path, self._server = path, server
                return Reading(time.monotonic(), read_page(text, server))
        self._path = self._server = None
        return Reading(time.monotonic(), None, trouble.kind, str(trouble))

    def _run(self) -> None:
        while not self._stop.is_set():
            self.reading = self.look()
            self._stop.wait(self._every_s)
