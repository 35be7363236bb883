from __future__ import annotations

import itertools

import pytest

from farm.client.credentials import Credentials
from farm.client.events import follow, follow_log, parse_sse
from farm.client.transport import Transport
from farm.errors import Unavailable
from tests.unit.farm.client.scripted_server import ScriptedServer, answer, events, no_answer


def transport(server: ScriptedServer) -> Transport:
    return Transport(Credentials(server.url, "k"), sleep=lambda s: None)


def message(number: int, kind: str = "job.state") -> str:
    return f'id: {number}\nevent: {kind}\ndata: {{"job_id": "job_{number}", "data": {{}}}}\n\n'


def test_messages_are_read_as_the_standard_says() -> None:
    lines = [
        ": comment",
        "retry: 1000",
        "id:7",
        "event: a",
        "data: one",
        "data:two",
        "",
        "data",
        "",
        "event: b",
        "",
        "data: three",
        "",
        "data: cut off",
    ]
    assert list(parse_sse(lines)) == [("7", "a", "one\ntwo"), ("7", "message", ""), ("7", "message", "three")]


def test_a_broken_stream_is_taken_up_after_the_last_event() -> None:
    script = [
        events("retry: 1000\n\n" + message(4) + message(5)),
        no_answer,
        answer(503),
        events(message(6) + 'id: 7\nevent: job.state\ndata: {"half'),
        events(message(7)),
    ]
    with ScriptedServer(script) as server:
        stream = follow(transport(server), job="job_1", sleep=lambda s: None)
        seen = [event.id for event in itertools.islice(stream, 4)]
    assert seen == [4, 5, 6, 7]
    resumed = [asked.headers.get("Last-Event-ID") for asked in server.asked]
    assert resumed == [None, "5", "5", "5", "6"]
    assert server.asked[0].path == "/v1/events?job=job_1"


def test_ids_that_go_down_are_followed_as_they_come() -> None:
    # on PostgreSQL the order is that of commits: resume from the last one, not from the largest
    with ScriptedServer([events(message(9) + message(8)), events(message(12))]) as server:
        seen = [e.id for e in itertools.islice(follow(transport(server), sleep=lambda s: None), 3)]
    assert seen == [9, 8, 12]
    assert server.asked[1].headers["Last-Event-ID"] == "8"


def test_a_farm_that_stays_away_is_an_error_in_the_end() -> None:
    gone = Transport(Credentials("http://127.0.0.1:9", "k"), retries=0)
    with pytest.raises(Unavailable):
        next(follow(gone, give_up_s=-1, sleep=lambda s: None))


def test_a_log_is_followed_over_a_break_until_its_end() -> None:
    script = [
        events('id: 3\ndata: {"text": "abc", "offset": 0, "next": 3}\n\n'),
        events(
            'id: 5\ndata: {"text": "de", "offset": 3, "next": 5}\n\nid: 5\nevent: end\ndata: {"next": 5}\n\n'
        ),
    ]
    with ScriptedServer(script) as server:
        text = "".join(follow_log(transport(server), "att_1", sleep=lambda s: None))
    assert text == "abcde"
    assert [asked.path.rpartition("=")[2] for asked in server.asked] == ["0", "3"]
