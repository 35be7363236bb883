"""HTTP to the farm: the key, retries of calls that may be repeated, and errors as exceptions."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import uuid_utils

from farm.client.credentials import Credentials
from farm.client.problems import to_error
from farm.errors import StillAnswering, Unavailable

RETRIED_STATUS = frozenset({429, 502, 503, 504})
_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
BACKOFF_S = 0.2
BACKOFF_MAX_S = 5.0
PATIENCE_S = 60.0
"""How long a request that the farm has begun to answer is sent again with its Idempotency-Key."""


class Transport:
    """Sends requests with the key. ``retries`` counts repetitions after the first try.

    A call is repeated when the farm cannot be reached or says 429, 502, 503 or 504, and only if repeating
    cannot do a thing twice: GET, PUT and DELETE, and a POST that carries an Idempotency-Key. Once such a POST
    has been sent whole or in part, its answer is waited for up to :data:`PATIENCE_S`, through a restart of
    the API: what became of it cannot be known otherwise. ``say`` is told in words when such a wait begins.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        http: httpx.Client | None = None,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.url = credentials.url.rstrip("/")
        self.retries = retries
        self._sleep = sleep
        self._say = say or (lambda text: None)
        self._http = http or httpx.Client(base_url=self.url, timeout=timeout_s, follow_redirects=False)
        self._http.headers["Authorization"] = f"Bearer {credentials.key}"
        self._http.headers["User-Agent"] = "stillframe-client"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        content: Callable[[], Iterator[bytes]] | None = None,
    ) -> httpx.Response:
        """One call; ``content`` makes the body's stream anew for each try.

        Raises the :class:`farm.errors.FarmError` that the farm answered, and
        :class:`farm.errors.Unavailable` when it cannot be reached.
        """
        headers = dict(headers or {})
        keyed = "Idempotency-Key" in headers
        repeatable = method in _REPEATABLE or keyed
        query = {name: value for name, value in (params or {}).items() if value is not None}
        begun, waited, since = False, 0.0, 0.0
        for attempt in itertools.count():
            last = not repeatable or (
                max(waited, time.monotonic() - since) >= PATIENCE_S if begun else attempt >= self.retries
            )
            try:
                response = self._http.request(
                    method,
                    path,
                    json=json,
                    params=query,
                    headers=headers,
                    content=content() if content else None,
                )
            except httpx.TransportError as trouble:
                if keyed and not begun and not isinstance(trouble, httpx.ConnectError | httpx.ConnectTimeout):
                    begun, last, since = True, False, time.monotonic()
                    self._say(
                        f"no answer came ({trouble or type(trouble).__name__}); sending the same request "
                        f"again for up to {PATIENCE_S:g} s (it is done once, however often it arrives)"
                    )
                if last:
                    raise self._unreachable(trouble) from trouble
                waited += self._wait(attempt, None)
                continue
            if response.status_code in RETRIED_STATUS and not last:
                waited += self._wait(attempt, response.headers.get("Retry-After"))
                continue
            if response.status_code >= 400:
                error = to_error(response)
                if isinstance(error, StillAnswering) and keyed and (not begun or not last):
                    if not begun:
                        begun, since = True, time.monotonic()
                        self._say(f"the farm is still answering this request; waiting up to {PATIENCE_S:g} s")
                    waited += self._wait(attempt, response.headers.get("Retry-After"))
                    continue
                raise error
            return response
        raise AssertionError("the last try returns or raises")

    def post(self, path: str, *, json: Any = None, idempotency_key: str | None = None) -> httpx.Response:
        """A POST that may be repeated, because its Idempotency-Key makes the farm do it once."""
        return self.request(
            "POST",
            path,
            json={} if json is None else json,
            headers={"Idempotency-Key": idempotency_key or uuid_utils.uuid7().hex},
        )

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout_s: float | None = 60.0,
    ) -> Iterator[httpx.Response]:
        """A GET whose body is read bit by bit; one try. Raises like :meth:`request`."""
        query = {name: value for name, value in (params or {}).items() if value is not None}
        timeout = httpx.Timeout(30.0, read=read_timeout_s)
        try:
            with self._http.stream("GET", path, params=query, headers=headers, timeout=timeout) as response:
                if response.status_code >= 400:
                    response.read()
                    raise to_error(response)
                yield response
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> Unavailable:
        why = str(error) or type(error).__name__
        return Unavailable(
            f"cannot reach the farm at {self.url} ({why}): is it running? Start one with `farm up`, "
            "or set FARM_URL to its address"
        )

    def _wait(self, attempt: int, retry_after: str | None) -> float:
        """Wait before the next try; returns the seconds."""
        delay = min(BACKOFF_S * 2.0 ** min(attempt, 10), BACKOFF_MAX_S) * random.uniform(0.7, 1.3)
        if retry_after and retry_after.isdigit():
            delay = min(float(retry_after), 60.0)
        self._sleep(delay)
        return delay
