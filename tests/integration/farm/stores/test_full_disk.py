"""The folder store on a real file system that is really full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.errors import OutOfSpace
from farm.stores.local import LocalStore

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root; the unit tests inject the error instead")
    folder = tmp_path / "small"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"this system does not let us mount: {mount.stderr.decode(errors='replace')}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def remains(store: LocalStore) -> list[str]:
    return [path.name for path in store.folder.rglob("*") if path.is_file()]


def test_upload_onto_a_full_disk_leaves_nothing_and_works_after_room_is_made(small_disk: Path) -> None:
    store = LocalStore(small_disk / "store")
    with pytest.raises(OutOfSpace, match="farm gc"):
        store.put_stream(os.urandom(65536) for _ in range(64))
    assert remains(store) == []
    kept, _ = store.put_stream([os.urandom(MIB)])
    with pytest.raises(OutOfSpace):
        store.put_stream(os.urandom(65536) for _ in range(32))
    assert remains(store) == [kept]
    assert store.delete(kept)
    _, size = store.put_stream([os.urandom(MIB + MIB // 2)])
    assert size == MIB + MIB // 2


def test_file_copied_onto_a_full_disk_stays_where_it_was(small_disk: Path, tmp_path: Path) -> None:
    store = LocalStore(small_disk / "store")
    frame = tmp_path / "frame.exr"
    frame.write_bytes(os.urandom(3 * MIB))
    with pytest.raises(OutOfSpace):
        store.put_file(frame)
    assert frame.stat().st_size == 3 * MIB
    assert remains(store) == []


def test_check_space_sees_the_real_disk(small_disk: Path) -> None:
    store = LocalStore(small_disk / "store", free_space_floor=MIB)
    store.check_space(MIB // 2)
    with pytest.raises(OutOfSpace, match="FARM_FREE_SPACE_FLOOR"):
        store.check_space(MIB + MIB // 2)
