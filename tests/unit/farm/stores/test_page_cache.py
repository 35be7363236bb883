"""Large contents leave the page cache once they are on disk; small ones stay for whoever reads them next."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from farm.stores import local
from farm.stores.local import LocalStore


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Syncs and hints in their order; "large" is 1,000 bytes here."""
    seen: list[str] = []

    def noting(name: str, real: object) -> object:
        def call(fd: int, *rest: int) -> object:
            seen.append(name)
            return real(fd, *rest)  # type: ignore[operator]

        return call

    monkeypatch.setattr(local, "LARGE", 1000)
    for name in ("fsync", "fdatasync", "posix_fadvise"):
        monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
    return seen


def test_a_large_stream_is_synced_piece_by_piece_and_dropped(tmp_path: Path, calls: list[str]) -> None:
    store = LocalStore(tmp_path)
    calls.clear()
    data = [b"x" * 400] * 6
    digest, size = store.put_stream(data)
    assert (digest, size) == (hashlib.sha256(b"x" * 2400).hexdigest(), 2400)
    # after 1,200 and 2,400 bytes, and at the end; then the folder
    assert calls == ["fdatasync", "posix_fadvise"] * 2 + ["fsync", "posix_fadvise", "fsync"]


def test_a_large_file_that_is_moved_is_dropped_after_it_is_synced(tmp_path: Path, calls: list[str]) -> None:
    store = LocalStore(tmp_path / "store")
    calls.clear()
    path = tmp_path / "file"
    path.write_bytes(b"y" * 5000)
    digest, _ = store.put_file(path)
    assert calls[:2] == ["fsync", "posix_fadvise"]
    with store.open(digest) as file:
        assert file.read() == b"y" * 5000


def test_small_contents_stay_cached(tmp_path: Path, calls: list[str]) -> None:
    store = LocalStore(tmp_path)
    calls.clear()
    store.put_stream([b"z" * 500])
    assert "posix_fadvise" not in calls and "fdatasync" not in calls
