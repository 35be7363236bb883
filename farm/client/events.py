"""The farm's event log, live: server-sent events that resume where they broke off."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from farm.client.models import Event
from farm.client.transport import Transport
from farm.errors import Unavailable

RECONNECT_S = 0.5
RECONNECT_MAX_S = 10.0


@dataclass(slots=True)
class _Message:
    id: str = ""
    type: str = "message"
    data: list[str] = field(default_factory=list)


def parse_sse(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Lines of an event stream to ``(id, type, data)``; comments and unknown fields are skipped.

    Follows the WHATWG parsing rules for ``text/event-stream``: one space after the colon is dropped, an
    empty line ends a message, a message without data is none.
    """
    message = _Message()
    for line in lines:
        if not line:
            if message.data:
                yield message.id, message.type, "\n".join(message.data)
            message = _Message(id=message.id)
            continue
        if line.startswith(":"):
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            message.data.append(value)
        elif name == "event":
            message.type = value
        elif name == "id" and "\0" not in value:
            message.id = value


def follow(
    transport: Transport,
    *,
    job: str | None = None,
    last_id: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    give_up_s: float = 120.0,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Event]:
    """Events after ``last_id`` (``None``: from now on), for ever, each once and in order.

    A broken stream is taken up again after the last event seen. Raises :class:`farm.errors.Unavailable`
    when the farm stays away for ``give_up_s`` seconds.
    """
    delay = RECONNECT_S
    away_since: float | None = None
    while not stop():
        headers = {"Accept": "text/event-stream"}
        if last_id is not None:
            headers["Last-Event-ID"] = str(last_id)
        try:
            with transport.stream("/v1/events", params={"job": job}, headers=headers) as response:
                away_since, delay = None, RECONNECT_S
                for identifier, kind, data in parse_sse(response.iter_lines()):
                    body = json.loads(data)
                    if identifier.isdigit():
                        last_id = int(identifier)
                        yield Event.model_validate({"id": last_id, "type": kind} | body)
                    if stop():
                        return
        except Unavailable:
            now = time.monotonic()
            away_since = away_since if away_since is not None else now
            if now - away_since > give_up_s:
                raise
        sleep(delay)
        delay = min(delay * 2, RECONNECT_MAX_S)


def follow_log(
    transport: Transport,
    attempt_id: str,
    *,
    offset: int = 0,
    give_up_s: float = 120.0,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Text of an attempt's log from byte ``offset`` on, until the attempt has ended.

    Raises :class:`farm.errors.Unavailable` when the farm stays away for ``give_up_s`` seconds.
    """
    away_since: float | None = None
    while True:
        try:
            with transport.stream(
                f"/v1/attempts/{attempt_id}/log/live", params={"offset": offset}
            ) as response:
                away_since = None
                for identifier, kind, data in parse_sse(response.iter_lines()):
                    if kind == "end":
                        return
                    offset = int(identifier)
                    yield json.loads(data)["text"]
        except Unavailable:
            now = time.monotonic()
            away_since = away_since if away_since is not None else now
            if now - away_since > give_up_s:
                raise
        sleep(RECONNECT_S)
