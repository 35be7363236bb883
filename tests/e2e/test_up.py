"""`farm up` as a person runs it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from pathlib import Path

import httpx
import pytest

from api.cli.running.children import farm_command
from tests.e2e.farms import SCENE, Up, environment, processes_of, until

pytestmark = pytest.mark.timeout(900)


def command(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        farm_command(*words),
        env=environment(folder, more),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_farm_comes_up_renders_and_leaves_nothing_running(tmp_path: Path) -> None:
    up = Up(tmp_path).start()
    try:
        key_file = tmp_path / "config" / "stillframe" / "key.json"
        assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
        assert up.text().count(up.key) == 1
        assert up.url.startswith("http://127.0.0.1:")

        second = command(tmp_path, "up")
        assert second.returncode == 1
        assert str(up.data) in second.stderr
        assert "FARM_DATA" in second.stderr

        busy = command(tmp_path / "other", "up", FARM_LISTEN=up.url.removeprefix("http://"))
        assert busy.returncode == 1
        assert "FARM_LISTEN" in busy.stderr
        assert processes_of(tmp_path / "other") == {}

        (tmp_path / "scene.xml").write_text(SCENE)
        words = ["--frames", "1-2", "--size", "64x36", "--samples", "2", "--film", "mp4", "--watch"]
        out = tmp_path / "out"
        done = command(
            tmp_path, "submit", "render", str(tmp_path / "scene.xml"), *words, "--download", str(out)
        )
        assert done.returncode == 0, done.stderr
        job, *paths = done.stdout.split()
        assert job.startswith("job_")
        # a folder for each job: its name and the end of its id
        folder = out / f"scene-{job[-6:]}"
        assert sorted(Path(path).relative_to(folder).as_posix() for path in paths) == [
            "film.mp4",
            "render/beauty.0001.png",
            "render/beauty.0002.png",
        ]
        for path in paths:
            assert Path(path).stat().st_size > 0
        for words in (
            ["jobs"],
            ["job", job],
            ["frames", job],
            ["attempts", job],
            ["nodes"],
            ["slots"],
            ["pools"],
        ):
            shown = command(tmp_path, *words, "--json")
            assert shown.returncode == 0, shown.stderr
            assert shown.stdout.lstrip()[0] in "[{"
            assert command(tmp_path, *words).stdout.strip() != ""
        log = command(tmp_path, "logs", job)
        assert log.returncode == 0, log.stderr
    finally:
        code = up.stop(signal.SIGINT)
    assert code == 0
    until(lambda: processes_of(tmp_path) == {}, 60)


def test_a_second_start_keeps_its_jobs_and_its_key(tmp_path: Path) -> None:
    up = Up(tmp_path).start()
    key = up.key
    with up.client() as farm:
        hashes = {"scene.xml": SCENE}
        (tmp_path / "scene.xml").write_text(hashes["scene.xml"])
        files = farm.upload({"scene.xml": tmp_path / "scene.xml"})
        job = farm.submit(
            name="kept",
            kind="render",
            spec={"scene": "scene.xml"},
            assets=files,
            project="default",
            paused=True,
        )
    assert up.stop() == 0
    up = Up(tmp_path).start()
    try:
        assert up.key == key
        assert key not in up.text()
        with up.client() as farm:
            assert farm.job(job.id).paused
    finally:
        up.stop()


def test_a_killed_farm_leaves_nothing_running_and_a_killed_api_comes_back(tmp_path: Path) -> None:
    up = Up(tmp_path).start()
    try:
        url = up.url
        [api] = [pid for pid, words in processes_of(up.data).items() if words.rstrip().endswith("main api")]
        os.kill(api, signal.SIGKILL)
        until(lambda: "api ended with code -9" in up.text())
        until(lambda: _answers(url))
        [again] = [pid for pid, words in processes_of(up.data).items() if words.rstrip().endswith("main api")]
        assert again != api
        assert up.url == url
    finally:
        up.process.kill()
        up.process.wait()
    until(lambda: processes_of(tmp_path) == {}, 60)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1:99999"])
def test_a_bad_address_is_named_and_nothing_is_started(tmp_path: Path, listen: str) -> None:
    done = command(tmp_path, "up", FARM_LISTEN=listen)
    assert done.returncode == 1
    assert "FARM_LISTEN" in done.stderr
    assert not (tmp_path / "farm" / "up.lock").exists()
