"""Attempt logs: any bytes, capped, and no grandchild holds them up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from farm.attempt_logs import log_path, read_range
from farm.errors import InvalidInput, NotFound
from farm.ids import new_id
from workers.logs import AttemptLog


def test_bytes_stay_as_they_are(tmp_path: Path) -> None:
    attempt = new_id("att")
    log = AttemptLog(tmp_path, attempt)
    log.write("first")
    os.write(log.fileno(), b"\x82\xff\x00" + b"y" * 1_000_000 + b"\n")
    log.close()
    found = read_range(tmp_path, attempt)
    assert found.data == b"first\n\x82\xff\x00" + b"y" * 1_000_000 + b"\n"
    assert found.text().startswith(
        "first\n\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}\N{SYMBOL FOR NULL}y"
    )


def test_surrogates_in_text_come_out_as_the_bytes_they_were(tmp_path: Path) -> None:
    attempt = new_id("att")
    log = AttemptLog(tmp_path, attempt)
    log.write(b"caf\xe9".decode("utf-8", "surrogateescape"))
    log.close()
    assert read_range(tmp_path, attempt).data == b"caf\xe9\n"


def test_a_flood_keeps_head_and_tail_and_says_what_is_left_out(tmp_path: Path) -> None:
    attempt = new_id("att")
    log = AttemptLog(tmp_path, attempt, head=1000, tail=500)
    code = "import sys; sys.stdout.write('h' * 1000 + 'm' * 5_000_000 + 't' * 500)"
    subprocess.run([sys.executable, "-c", code], stdout=log.fileno(), check=True)
    log.close()
    data = read_range(tmp_path, attempt).data
    assert data.startswith(b"h" * 1000 + b"\n[... 5000000 bytes left out")
    assert data.endswith(b"...]\n" + b"t" * 500)
    assert len(data) < 2000


def test_a_grandchild_that_holds_the_pipe_does_not_hold_up_the_end(tmp_path: Path) -> None:
    attempt = new_id("att")
    log = AttemptLog(tmp_path, attempt)
    child = subprocess.Popen(["sleep", "60"], stdout=log.fileno())
    try:
        started = time.monotonic()
        log.close()
        assert time.monotonic() - started < 1.5
    finally:
        child.kill()
        child.wait()


def test_ranges(tmp_path: Path) -> None:
    attempt = new_id("att")
    log = AttemptLog(tmp_path, attempt)
    log.write_bytes(b"0123456789")
    log.close()
    assert read_range(tmp_path, attempt, 2, 3).data == b"234"
    tail = read_range(tmp_path, attempt, -4)
    assert (tail.data, tail.start, tail.size, tail.end) == (b"6789", 6, 10, 10)
    assert read_range(tmp_path, attempt, -99).data == b"0123456789"
    assert read_range(tmp_path, attempt, 50).data == b""


def test_no_path_can_be_made_of_an_attempt_id(tmp_path: Path) -> None:
    for bad in ("../../etc/passwd", "att_..", "task_" + "0" * 32, ""):
        with pytest.raises(InvalidInput, match="not an attempt's id"):
            log_path(tmp_path, bad)
    with pytest.raises(NotFound, match="written no log"):
        read_range(tmp_path, new_id("att"))
