"""Logs: whole, by ranges, broken bytes, raw, and the live tail."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from farm.errors import InvalidInput
from farm.records import ClaimedTask
from tests.integration.api.conftest import Farm

NUL = "\u2400"
BAD = "\ufffd"


@pytest.fixture
def running(farm: Farm) -> tuple[str, ClaimedTask]:
    """A slot and the task that it runs."""
    _, slot_id = farm.slot()
    job = farm.submit(spec={"steps": [{"name": "probe", "tasks": 1}]})
    return slot_id, farm.claim(slot_id, job["id"])[0]


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != ":")
        if "data" in fields:
            found.append((fields.get("event", "message"), json.loads(fields["data"])))
    return found


def test_a_log_of_broken_bytes_is_readable_text_and_exact_bytes(
    farm: Farm, running: tuple[str, ClaimedTask]
) -> None:
    data = b"ok\n\x82\xff\0" + b"x" * 1_000_000 + b"\nd\xc3\xa9j\xc3\xa0\n"
    attempt_id = running[1].attempt_id
    farm.write_log(attempt_id, data)
    path = f"/v1/attempts/{attempt_id}/log"
    text = farm.call.get(path)
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert text.text == f"ok\n{BAD}{BAD}{NUL}" + "x" * 1_000_000 + "\ndéjà\n"
    assert text.headers["x-log-size"] == str(len(data))
    raw = farm.call.get(path, headers={"Accept": "application/octet-stream"})
    assert raw.content == data
    part = farm.call.get(path, headers={"Accept": "application/octet-stream", "Range": "bytes=3-5"})
    assert (part.status_code, part.content) == (206, b"\x82\xff\0")
    assert part.headers["content-range"] == f"bytes 3-5/{len(data)}"
    past = farm.call.get(path, headers={"Accept": "application/octet-stream", "Range": "bytes=9999999-"})
    assert past.status_code == 416


def test_a_range_never_cuts_a_character(farm: Farm, running: tuple[str, ClaimedTask]) -> None:
    attempt_id = running[1].attempt_id
    farm.write_log(attempt_id, "aé€😀z".encode())
    path = f"/v1/attempts/{attempt_id}/log"
    text, offset = "", 0
    for _ in range(20):
        answer = farm.call.get(path, params={"offset": offset, "length": 4})
        text += answer.text
        if int(answer.headers["x-log-next"]) == offset:
            break
        offset = int(answer.headers["x-log-next"])
    assert text == "aé€😀z"
    assert farm.call.get(path, params={"offset": -5}).text == "😀z"
    assert farm.call.get(path, params={"offset": 500}).text == ""
    assert farm.call.get(path, params={"length": 0}).status_code == 422


def test_an_attempt_that_wrote_nothing_has_an_empty_log(farm: Farm, running: tuple[str, ClaimedTask]) -> None:
    answer = farm.call.get(f"/v1/attempts/{running[1].attempt_id}/log")
    assert (answer.status_code, answer.text, answer.headers["x-log-size"]) == (200, "", "0")


def test_no_path_can_be_made_of_an_attempts_name(farm: Farm) -> None:
    for name in ("..%2f..%2fetc%2fpasswd", "att_..", "%2fetc%2fpasswd"):
        assert farm.call.get(f"/v1/attempts/{name}/log").status_code == 404
    with pytest.raises(InvalidInput):
        farm.write_log("../x", b"")


def test_the_tail_follows_until_the_attempt_ends(farm: Farm, running: tuple[str, ClaimedTask]) -> None:
    slot_id, task = running
    farm.write_log(task.attempt_id, b"one\n\xc3")

    def go_on() -> None:
        farm.write_log(task.attempt_id, b"\xa9two\n")
        farm.finish(slot_id, task)
        farm.write_log(task.attempt_id, b"three\xff")

    later = threading.Timer(0.6, go_on)
    later.start()
    answer = farm.call.get(f"/v1/attempts/{task.attempt_id}/log/live")
    later.join()
    found = events(answer.text)
    assert answer.headers["content-type"].startswith("text/event-stream")
    text = "".join(data["text"] for kind, data in found if kind == "message")
    assert text.startswith("one\nétwo\n")
    assert [kind for kind, _ in found].count("end") == 1
    assert found[-1][0] == "end"
    # bytes after the end are still read if they were there when the end was seen
    assert text in ("one\nétwo\n", f"one\nétwo\nthree{BAD}")
    resumed = farm.call.get(f"/v1/attempts/{task.attempt_id}/log/live", headers={"Last-Event-ID": "6"})
    assert "".join(d.get("text", "") for _, d in events(resumed.text)) == f"two\nthree{BAD}"
