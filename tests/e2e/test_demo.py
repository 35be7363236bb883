"""`farm demo`: its output, and that nothing stays, whenever it is stopped."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from api.cli.running.children import farm_command
from tests.e2e.farms import DEADLINE_S, environment, processes_of, until

pytestmark = pytest.mark.timeout(900)

# the demo as it is, with a film small enough for a test
SMALL = """
import jobs.render.demo as film
whole = film.spec
def spec():
    small = whole("1-2") | {"resolution": [64, 36], "samples": 1, "denoise": "none"}
    small["film"] = small["film"] | {"quality": "draft"}
    return small
film.spec = spec
from api.cli.main import main
main()
"""


def demo_environment(folder: Path) -> dict[str, str]:
    env = environment(folder)
    del env["FARM_DATA"]
    return env


def test_without_a_terminal_it_prints_the_film_last_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "films"
    words = [sys.executable, "-c", SMALL, "demo", "--only", "render", "--output", str(out)]
    for _ in range(2):
        done = subprocess.run(
            words, env=demo_environment(tmp_path), capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == str(out / "turntable.mp4")
        assert "\x1b" not in done.stdout + done.stderr
        assert "2/2 frames" in done.stderr
        assert [path.name for path in out.iterdir()] == ["turntable.mp4"]
        until(lambda: processes_of(tmp_path) == {}, 60)
    assert not (tmp_path / "config" / "stillframe" / "key.json").exists()


def test_stopped_early_or_in_the_middle_it_leaves_nothing(tmp_path: Path) -> None:
    errors = tmp_path / "errors.txt"
    for said in ("starting a farm", "the farm is up", "submitted as"):
        with errors.open("wb") as output:
            process = subprocess.Popen(
                farm_command("demo", "--output", str(tmp_path / "films")),
                env=demo_environment(tmp_path),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,
            )
        try:
            until(lambda said=said: said in errors.read_text())  # type: ignore[misc]
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 130, errors.read_text()
        finally:
            process.kill()
        until(lambda: processes_of(tmp_path) == {}, 60)


def test_in_a_terminal_it_serves_the_dashboard_until_it_is_stopped(tmp_path: Path) -> None:
    out = tmp_path / "films"
    words = [sys.executable, "-c", SMALL, "demo", "--only", "render", "--output", str(out)]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        words,
        env=demo_environment(tmp_path),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""

    def has(text: bytes) -> bool:
        nonlocal shown
        try:
            shown += os.read(ours, 65536)
        except OSError:
            return True
        return text in shown

    try:
        until(lambda: has(b"Ctrl-C ends it."))
        assert b"The dashboard is at http://127.0.0.1:" in shown
        assert str(out / "turntable.mp4").encode() in shown.replace(b"\r\n", b"")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        until(lambda: has(b"\0never\0") or process.poll() is not None)
        assert process.wait(DEADLINE_S) == 0
    finally:
        os.close(ours)
        if process.poll() is None:
            process.kill()
    until(lambda: processes_of(tmp_path) == {}, 60)
