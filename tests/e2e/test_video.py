"""A film through a real farm, and the same film from a slot that was killed in the middle of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import pytest

from farm.client import FarmClient
from tests.e2e.farms import Up, environment, until
from tests.kinds import tiny_pipelines

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A running farm of one machine that knows the tiny pipeline; its waiting threads leave their cores."""
    made = Up(tmp_path_factory.mktemp("farm"), {"OMP_WAIT_POLICY": "PASSIVE"})
    try:
        made.start()
        added = subprocess.run(
            [
                sys.executable,
                "-m",
                "api.cli.main",
                "models",
                "add",
                "tiny-wan",
                str(tiny_pipelines.folder("wan")),
            ],
            env=environment(made.folder),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert added.returncode == 0, added.stdout + added.stderr
        yield made
    finally:
        made.stop()


def submit(client: FarmClient, name: str, **fields: Any) -> str:
    """A film of the tiny pipeline; its id."""
    spec = {
        "model": "tiny-wan",
        "prompt": "a red cat runs over the sea",
        "size": "64x64",
        "frames": 17,
        "dtype": "float32",
        "seeds": [4],
        # one pass a step: enough of them for a checkpoint and a kill, and no more work than that
        "guidance": 1.0,
        "checkpoint_every": 5,
        "film": {"formats": ["mp4"]},
        **fields,
    }
    return client.submit(name=name, kind="video", spec=spec).id


def finished(client: FarmClient, job_id: str) -> bool:
    """Whether the job is done; fails with the reasons where it never will be."""
    state = client.job(job_id).state
    assert state not in ("failed", "cancelled"), [a.error for a in client.attempts(job_id)]
    return state == "done"


def hashes(client: FarmClient, job_id: str) -> list[str]:
    """SHA-256 of each frame's file, in order."""
    frames = sorted(client.frames(job_id), key=lambda frame: frame.number)
    return [file.sha256 for frame in frames for file in frame.files]


def test_a_film_is_made_and_a_killed_slot_makes_the_same_files(up: Up, tmp_path: Path) -> None:
    """The slot is killed after a checkpoint; another process life goes on from there, not from the start."""
    with up.client() as client:
        killed = submit(client, "killed", steps=300)
        until(lambda: [row for row in client.buffers() if row.purpose == "checkpoint"])
        running = [slot for slot in client.slots() if slot.task_ids]
        assert len(running) == 1
        assert running[0].pid is not None
        os.kill(running[0].pid, signal.SIGKILL)
        whole = submit(client, "whole", steps=300)
        until(lambda: finished(client, killed) and finished(client, whole), deadline_s=300)

        assert len(hashes(client, whole)) == 17
        assert hashes(client, killed) == hashes(client, whole)
        sidecars = {}
        for job_id in (killed, whole):
            item = next(item for item in client.artifacts(job_id) if item.name == "seed-4.json")
            client.download_artifact(item, tmp_path / f"{job_id}.json")
            sidecars[job_id] = json.loads((tmp_path / f"{job_id}.json").read_text())["made"]
        assert sidecars[whole]["steps_computed"] == 300
        assert sidecars[killed]["differences"] == []
        assert sidecars[killed]["resumed_from"] + sidecars[killed]["steps_computed"] == 300
        film = next(item for item in client.artifacts(whole) if item.name.endswith(".mp4"))
        client.download_artifact(film, tmp_path / "film.mp4")
    with av.open(str(tmp_path / "film.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == 17
        assert container.streams.video[0].average_rate == 16
