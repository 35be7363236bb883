"""The folder store: naming, moving, refusing, and staying whole when the disk does not."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import HashMismatch, InvalidInput, NotFound, OutOfSpace, TooLarge, Unavailable
from farm.stores import open_store
from farm.stores.local import LocalStore

HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"  # sha256sum of "hello"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def files_of(store: LocalStore) -> list[str]:
    return sorted(
        str(path.relative_to(store.folder)) for path in store.folder.rglob("*") if not path.is_dir()
    )


def test_stream_is_kept_under_its_hash(store: LocalStore) -> None:
    assert store.put_stream([b"he", b"", b"llo"]) == (HELLO, 5)
    assert files_of(store) == [f"2c/{HELLO}"]
    assert store.exists(HELLO)
    assert store.size(HELLO) == 5
    assert store.open(HELLO).read() == b"hello"
    path = store.path(HELLO)
    assert path is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o444


def test_empty_content_is_content(store: LocalStore) -> None:
    assert store.put_stream([]) == (EMPTY, 0)
    assert store.open(EMPTY).read() == b""


def test_same_bytes_are_kept_once(store: LocalStore) -> None:
    store.put_stream([b"hello"])
    before = (store.folder / "2c" / HELLO).stat().st_ino
    store.put_stream([b"hello"])
    assert files_of(store) == [f"2c/{HELLO}"]
    assert (store.folder / "2c" / HELLO).stat().st_ino == before


def test_wrong_hash_is_refused_and_leaves_nothing(store: LocalStore) -> None:
    with pytest.raises(HashMismatch, match=HELLO):
        store.put_stream([b"hello"], sha256=EMPTY)
    assert files_of(store) == []


def test_upload_over_the_limit_is_refused_and_leaves_nothing(store: LocalStore) -> None:
    endless = iter(lambda: b"x" * 1000, b"")
    with pytest.raises(TooLarge, match="2,500"):
        store.put_stream(endless, max_bytes=2500)
    assert files_of(store) == []


def test_upload_that_breaks_off_leaves_nothing(store: LocalStore) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        store.put_stream(broken())
    assert files_of(store) == []


def test_upload_is_invisible_until_committed(store: LocalStore) -> None:
    with store.begin() as upload:
        upload.write(b"hello")
        assert not store.exists(HELLO)
        assert list(store.iter_hashes()) == []
        assert upload.commit(HELLO) == (HELLO, 5)
    assert store.exists(HELLO)


@pytest.mark.parametrize(
    "name", ["../../x", "/etc/passwd", "x" * 300, HELLO.upper(), HELLO[:-1], HELLO + "\n", "a\0b", ""]
)
def test_names_that_are_no_hash_are_refused(store: LocalStore, name: str) -> None:
    for call in (store.open, store.path, store.exists, store.size, store.delete):
        with pytest.raises(InvalidInput, match="not a SHA-256"):
            call(name)
    with pytest.raises(InvalidInput):
        store.put_stream([b"hello"], sha256=name)
    assert files_of(store) == []


def test_missing_content_is_not_found(store: LocalStore) -> None:
    assert store.path(HELLO) is None
    assert not store.exists(HELLO)
    for call in (store.open, store.size, store.stream):
        with pytest.raises(NotFound, match=HELLO):
            call(HELLO)


def test_file_is_moved_not_copied(store: LocalStore, tmp_path: Path) -> None:
    source = tmp_path / "frame.png"
    source.write_bytes(b"hello")
    inode = source.stat().st_ino
    assert store.put_file(source, HELLO) == (HELLO, 5)
    assert not source.exists()
    path = store.path(HELLO)
    assert path is not None
    assert path.stat().st_ino == inode
    assert path.stat().st_nlink == 1
    assert files_of(store) == [f"2c/{HELLO}"]


def test_file_that_the_store_has_is_taken_away(store: LocalStore, tmp_path: Path) -> None:
    store.put_stream([b"hello"])
    source = tmp_path / "again"
    source.write_bytes(b"hello")
    assert store.put_file(source) == (HELLO, 5)
    assert not source.exists()
    assert files_of(store) == [f"2c/{HELLO}"]


def test_file_with_the_wrong_hash_stays_where_it_is(store: LocalStore, tmp_path: Path) -> None:
    source = tmp_path / "frame.png"
    source.write_bytes(b"hello")
    with pytest.raises(HashMismatch):
        store.put_file(source, EMPTY)
    assert source.read_bytes() == b"hello"
    assert files_of(store) == []


def test_late_writer_cannot_change_what_was_stored(store: LocalStore, tmp_path: Path) -> None:
    """A child that still has its output open must not reach the stored bytes."""
    source = tmp_path / "frame.png"
    with source.open("wb") as writer:
        writer.write(b"hello")
        writer.flush()
        store.put_file(source)
        writer.seek(0)
        writer.write(b"HELLO")
    assert store.open(HELLO).read() == b"hello"


def test_other_name_cannot_change_what_was_stored(store: LocalStore, tmp_path: Path) -> None:
    source, other = tmp_path / "a", tmp_path / "b"
    source.write_bytes(b"hello")
    other.hardlink_to(source)
    store.put_file(source)
    other.chmod(0o644)
    other.write_bytes(b"HELLO")
    assert store.open(HELLO).read() == b"hello"


def test_only_plain_files_are_taken(store: LocalStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"hello")
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(secret)
    os.mkfifo(pipe)
    for path in (link, pipe, tmp_path):
        with pytest.raises(InvalidInput, match="plain file"):
            store.put_file(path)
    with pytest.raises(NotFound):
        store.put_file(tmp_path / "nothing")
    assert secret.read_bytes() == b"hello"
    assert files_of(store) == []


def test_file_from_another_file_system_is_copied(store: LocalStore) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == store.folder.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    source = shm / f"stillframe-test-{os.getpid()}"
    source.write_bytes(b"hello")
    try:
        assert store.put_file(source) == (HELLO, 5)
        assert not source.exists()
    finally:
        source.unlink(missing_ok=True)


def test_damaged_content_is_mended_by_the_next_put(store: LocalStore) -> None:
    store.put_stream([b"hello"])
    path = store.path(HELLO)
    assert path is not None
    path.chmod(0o644)
    path.write_bytes(b"hel")
    store.put_stream([b"hello"])
    assert store.open(HELLO).read() == b"hello"
    assert list(store.iter_hashes()) == [HELLO]


@given(data=st.binary(max_size=200), start=st.integers(0, 220), length=st.integers(0, 220) | st.none())
@settings(max_examples=60, deadline=None)
def test_ranges_are_those_of_a_slice(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, start: int, length: int | None
) -> None:
    store = LocalStore(tmp_path_factory.getbasetemp() / "ranges")
    sha, size = store.put_stream([data])
    assert (sha, size) == (hashlib.sha256(data).hexdigest(), len(data))
    end = None if length is None else start + length
    with store.open(sha, start, end) as reader:
        assert reader.read() == data[start:end]
    pieces = list(store.stream(sha, start, end, chunk=7))
    assert b"".join(pieces) == data[start:end]
    assert all(0 < len(piece) <= 7 for piece in pieces)


def test_range_that_ends_before_it_starts_is_refused(store: LocalStore) -> None:
    store.put_stream([b"hello"])
    with pytest.raises(ValueError, match="3 to 2"):
        store.open(HELLO, 3, 2)


def test_many_writers_of_one_content_agree(store: LocalStore) -> None:
    data = os.urandom(300_000)
    results: list[tuple[str, int]] = []

    def put() -> None:
        results.append(store.put_stream(data[i : i + 4096] for i in range(0, len(data), 4096)))

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results) == {(hashlib.sha256(data).hexdigest(), len(data))}
    assert len(results) == 8
    assert len(files_of(store)) == 1


def test_delete_spares_what_was_put_lately(store: LocalStore) -> None:
    store.put_stream([b"hello"])
    path = store.path(HELLO)
    assert path is not None
    assert not store.delete(HELLO, untouched_s=3600)
    os.utime(path, (0, 0))
    store.put_stream([b"hello"])  # deduplicated, and that counts as a touch
    assert not store.delete(HELLO, untouched_s=3600)
    os.utime(path, (0, 0))
    assert store.delete(HELLO, untouched_s=3600)
    assert not store.exists(HELLO)
    assert not store.delete(HELLO)
    assert files_of(store) == []


def test_moved_file_counts_as_put_now_however_old_it_is(store: LocalStore, tmp_path: Path) -> None:
    source = tmp_path / "old"
    source.write_bytes(b"hello")
    os.utime(source, (0, 0))
    store.put_file(source)
    assert not store.delete(HELLO, untouched_s=3600)


def test_deletion_never_loses_a_put_at_the_same_moment(store: LocalStore) -> None:
    """Putters and a collector race; whenever a put has returned, the bytes must be there."""
    stop = threading.Event()
    failures: list[str] = []

    def collect() -> None:
        while not stop.is_set():
            path = store.path(HELLO)
            if path is not None:
                try:
                    os.utime(path, (0, 0))  # what was put long ago
                except FileNotFoundError:
                    continue
            store.delete(HELLO, untouched_s=3600)

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        for _ in range(300):
            sha, size = store.put_stream([b"hello"])
            if (sha, size) != (HELLO, 5):
                failures.append("wrong answer")
    finally:
        stop.set()
        collector.join()
    store.put_stream([b"hello"])
    assert failures == []
    assert store.open(HELLO).read() == b"hello"
    assert files_of(store) == [f"2c/{HELLO}"]


def test_deletion_gives_back_what_a_put_has_just_counted_on(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put's touch lands between the collector's look and its rename."""
    store.put_stream([b"hello"])
    path = store.path(HELLO)
    assert path is not None
    os.utime(path, (0, 0))
    real_rename = Path.rename

    def rename(source: Path, target: Path) -> Path:
        if source == path:
            os.utime(path)
        return real_rename(source, target)

    monkeypatch.setattr(Path, "rename", rename)
    assert not store.delete(HELLO, untouched_s=3600)
    assert store.open(HELLO).read() == b"hello"


def test_sweep_removes_old_remains_only(store: LocalStore) -> None:
    old, young = store.folder / "tmp" / "old", store.folder / "tmp" / "young"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert store.sweep(3600) == 1
    assert not old.exists()
    assert young.exists()
    assert list(store.iter_hashes()) == []


def test_check_space_keeps_the_floor(tmp_path: Path) -> None:
    info = os.statvfs(tmp_path)
    free = info.f_bavail * info.f_frsize
    LocalStore(tmp_path / "a", free_space_floor=0).check_space(1)
    with pytest.raises(OutOfSpace, match="farm gc"):
        LocalStore(tmp_path / "b", free_space_floor=free * 2).check_space(1)
    with pytest.raises(OutOfSpace):
        LocalStore(tmp_path / "c").check_space(free * 2)


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, OutOfSpace), (errno.EDQUOT, OutOfSpace), (errno.EIO, Unavailable)]
)
@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_failing_disk_is_named_and_leaves_nothing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, call: str, code: int, error: type[Exception]
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(error, match=os.strerror(code)):
        store.put_stream([b"hello"])
    assert files_of(store) == []


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_failing_move_gives_the_file_back(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    source = tmp_path / "frame.png"
    source.write_bytes(b"hello")

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OutOfSpace):
        store.put_file(source)
    assert source.read_bytes() == b"hello"
    assert files_of(store) == []


def test_share_without_hard_links_still_never_writes_over(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", fail)
    assert store.put_stream([b"hello"]) == (HELLO, 5)
    inode = (store.folder / "2c" / HELLO).stat().st_ino
    assert store.put_stream([b"hello"]) == (HELLO, 5)
    assert (store.folder / "2c" / HELLO).stat().st_ino == inode
    assert files_of(store) == [f"2c/{HELLO}"]


def test_file_size_limit_is_out_of_space(tmp_path: Path) -> None:
    """RLIMIT_FSIZE, in a process of its own: the limit cannot be raised again."""
    program = f"""
import os
from pathlib import Path
from farm.errors import OutOfSpace
from farm.stores.local import LocalStore
store = LocalStore(Path({str(tmp_path)!r}) / "store")
try:
    store.put_stream(b"x" * 4096 for _ in range(100))
except OutOfSpace as error:
    print("full:", error)
print(sorted(p.name for p in store.folder.rglob("*") if p.is_file()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)),
    )
    assert done.stdout.startswith("full: ")
    assert done.stdout.endswith("[]\n")


def test_process_killed_half_way_leaves_nothing_visible(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from farm.stores.local import LocalStore
upload = LocalStore(Path({str(tmp_path)!r}) / "store").begin()
upload.write(b"hel")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -9
    store = LocalStore(tmp_path / "store")
    assert list(store.iter_hashes()) == []
    assert store.put_stream([b"hello"]) == (HELLO, 5)
    assert store.sweep(0) == 1
    assert files_of(store) == [f"2c/{HELLO}"]


def test_open_store_reads_folders_and_refuses_other_schemes(tmp_path: Path) -> None:
    assert open_store(f"file://{tmp_path}/a").put_stream([b"hello"]) == (HELLO, 5)
    assert (tmp_path / "a" / "2c" / HELLO).is_file()
    open_store(str(tmp_path / "b"))
    with pytest.raises(InvalidInput, match="FARM_STORE_URL 's4://x'"):
        open_store("s4://x")
