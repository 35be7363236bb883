"""A store in a local or shared folder: ``ab/<sha256>``, one read-only file for each content.

How a put stays safe against crashes and against others:

1. bytes are written under a random name in ``tmp/`` and hashed on the way;
2. file synced, mode 0444, then linked to its final name: ``link`` fails where the name exists, so nothing
   is ever written over;
3. the folder is synced, and only then does the caller hear the hash.

The 256 folders are made with the store, so that a put waits for the disk twice and no more.

A crash before step 2 leaves a file in ``tmp/`` that :meth:`LocalStore.sweep` removes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from farm.errors import HashMismatch, InvalidInput, NotFound, OutOfSpace, TooLarge, Unavailable
from farm.stores.base import CHUNK, checked_sha256
from farm.stores.ranges import LimitedReader

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
LARGE = 32 * 2**20
"""Contents from this size on leave the page cache once they are on disk, and are synced piece by piece while
they come: a big file must not push out what others have cached, nor leave a flood of dirty pages behind."""
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class LocalStore:
    """Contents in ``folder``, which is made where it is missing.

    ``free_space_floor`` is the number of free bytes that :meth:`check_space` keeps.
    """

    def __init__(self, folder: Path, *, free_space_floor: int = 0) -> None:
        self.folder = folder
        self.free_space_floor = free_space_floor
        self._temporary = folder / "tmp"
        self._temporary.mkdir(parents=True, exist_ok=True)
        self._make_folders()

    # --- in ------------------------------------------------------------------------------------------

    def begin(self) -> LocalUpload:
        """Start an upload that is fed piece by piece."""
        return LocalUpload(self)

    def put_stream(
        self, chunks: Iterable[bytes], sha256: str | None = None, max_bytes: int | None = None
    ) -> tuple[str, int]:
        """Store a stream of any length; see :meth:`farm.stores.base.Store.put_stream`."""
        if sha256 is not None:
            checked_sha256(sha256)
        with self.begin() as upload:
            for chunk in chunks:
                upload.write(chunk)
                if max_bytes is not None and upload.size > max_bytes:
                    raise TooLarge(f"the upload is over the limit of {max_bytes:,} bytes")
            return upload.commit(sha256)

    def put_file(self, path: Path, sha256: str | None = None) -> tuple[str, int]:
        """Move a finished file into the store; see :meth:`farm.stores.base.Store.put_file`.

        A file that another name or an open writer could still change is copied instead of moved.
        """
        if sha256 is not None:
            checked_sha256(sha256)
        try:
            # O_NOFOLLOW, O_NONBLOCK: neither a link nor a pipe in an output folder leads us elsewhere
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFound(f"{path} is not there to be stored") from None
        except OSError as error:
            raise InvalidInput(f"{path} cannot be stored: {error.strerror}; only plain files can") from error
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise InvalidInput(f"{path} is not a plain file; only plain files can be stored")
            movable = info.st_dev == self._temporary.stat().st_dev and info.st_nlink == 1
            if movable:
                os.fchmod(fd, 0o444)
                movable = not _has_writer(fd)
            if movable:
                return self._move(path, fd, sha256)
            with os.fdopen(os.dup(fd), "rb") as source:
                result = self.put_stream(iter(lambda: source.read(CHUNK), b""), sha256)
            path.unlink(missing_ok=True)
            return result
        finally:
            os.close(fd)

    def _move(self, path: Path, fd: int, sha256: str | None) -> tuple[str, int]:
        digest, size = _hash(fd)
        if sha256 is not None and digest != sha256:
            raise _mismatch(sha256, digest)
        # a private name first: the caller's folder may be swept, or the name swapped, while we work
        private = self._private_name()
        with _full_disk_is_named(self.folder):
            path.rename(private)
            moved = private.stat(follow_symlinks=False)
            if (moved.st_dev, moved.st_ino) != (os.fstat(fd).st_dev, os.fstat(fd).st_ino):
                private.rename(path)
                raise InvalidInput(f"{path} was replaced while it was being stored")
            try:
                os.fsync(fd)
                _leave_cache(fd, size)
                self._publish(private, digest, size)
            except BaseException:
                private.rename(path)
                raise
        return digest, size

    def _private_name(self) -> Path:
        return self._temporary / secrets.token_hex(16)

    def _publish(self, private: Path, sha256: str, size: int) -> None:
        """Give a synced private file its final name; ``private`` is gone afterwards."""
        final = self._where(sha256)
        os.utime(private)  # a moved file may be old, and delete() goes by the time of the last put
        while True:
            try:
                _link(private, final)
                break
            except FileExistsError:
                if self._touch_same(final, size):
                    break
        _sync_folder(final.parent)
        private.unlink(missing_ok=True)

    def _touch_same(self, final: Path, size: int) -> bool:
        """Whether the name holds the whole content; a damaged file is set aside so that it can be mended.

        The touch tells :meth:`delete` that somebody counts on these bytes.
        """
        try:
            os.utime(final)
            if final.stat().st_size == size:
                return True
            damaged = self.folder / "damaged"
            damaged.mkdir(exist_ok=True)
            final.rename(damaged / f"{final.name}.{secrets.token_hex(4)}")
        except FileNotFoundError:
            pass
        return False

    def _make_folders(self) -> None:
        missing = [self.folder / f"{i:02x}" for i in range(256) if not (self.folder / f"{i:02x}").is_dir()]
        for folder in missing:
            folder.mkdir(exist_ok=True)
        if missing:
            _sync_folder(self.folder)

    # --- out -----------------------------------------------------------------------------------------

    def open(self, sha256: str, start: int = 0, end: int | None = None) -> BinaryIO:
        """A reader of ``[start, end)``; raises :class:`NotFound`."""
        try:
            file = self._where(sha256).open("rb")
        except FileNotFoundError:
            raise _missing(sha256) from None
        if start == 0 and end is None:
            return file
        return LimitedReader.over(file, start, end)

    def stream(
        self, sha256: str, start: int = 0, end: int | None = None, chunk: int = CHUNK
    ) -> Iterator[bytes]:
        """The bytes of ``[start, end)`` in pieces; raises :class:`NotFound` at once."""
        file = self.open(sha256, start, end)

        def pieces() -> Iterator[bytes]:
            with file:
                while piece := file.read(chunk):
                    yield piece

        return pieces()

    def path(self, sha256: str) -> Path | None:
        """The file that holds these bytes, to be read only."""
        final = self._where(sha256)
        return final if final.is_file() else None

    def exists(self, sha256: str) -> bool:
        """Whether the store has these bytes."""
        return self._where(sha256).is_file()

    def size(self, sha256: str) -> int:
        """How many bytes; raises :class:`NotFound`."""
        try:
            return self._where(sha256).stat().st_size
        except FileNotFoundError:
            raise _missing(sha256) from None

    # --- away ----------------------------------------------------------------------------------------

    def delete(self, sha256: str, untouched_s: float = 0.0) -> bool:
        """Remove contents not put again within ``untouched_s``; see :meth:`farm.stores.base.Store.delete`."""
        final = self._where(sha256)
        try:
            if not _untouched(final, untouched_s):
                return False
            aside = self._private_name()
            final.rename(aside)
        except FileNotFoundError:
            return False
        # a put that found the name before the rename has touched the file, so look again
        if not _untouched(aside, untouched_s):
            with contextlib.suppress(FileExistsError):
                _link(aside, final)
            _sync_folder(final.parent)
            aside.unlink(missing_ok=True)
            return False
        aside.unlink(missing_ok=True)
        return True

    def untouched(self, sha256: str, seconds: float) -> bool:
        """Whether the bytes are there and nobody has put them for that long."""
        try:
            return _untouched(self._where(sha256), seconds)
        except FileNotFoundError:
            return False

    def iter_hashes(self) -> Iterator[str]:
        """Every hash in the store."""
        for number in range(256):
            folder = self.folder / f"{number:02x}"
            yield from (entry.name for entry in os.scandir(folder) if len(entry.name) == 64)

    def sweep(self, untouched_s: float) -> int:
        """Remove what broken uploads left in ``tmp/``; gives how many files."""
        removed = 0
        for entry in list(self._temporary.iterdir()):
            with contextlib.suppress(FileNotFoundError):
                if _untouched(entry, untouched_s):
                    entry.unlink()
                    removed += 1
        return removed

    def check_space(self, nbytes: int) -> None:
        """Raise :class:`OutOfSpace` where ``nbytes`` more would pass the floor of free space."""
        info = os.statvfs(self.folder)
        free = info.f_bavail * info.f_frsize
        if free - nbytes < self.free_space_floor:
            raise OutOfSpace(
                f"{self.folder} has {free:,} bytes free; {nbytes:,} more would pass the floor of "
                f"{self.free_space_floor:,}: free some space, run `farm gc`, or lower FARM_FREE_SPACE_FLOOR"
            )

    def _where(self, sha256: str) -> Path:
        checked_sha256(sha256)
        return self.folder / sha256[:2] / sha256


class LocalUpload:
    """One upload into a :class:`LocalStore`; see :class:`farm.stores.base.Upload`."""

    def __init__(self, store: LocalStore) -> None:
        self.size = 0
        self._unsynced = 0
        self._store = store
        self._private = store._private_name()
        self._hash = hashlib.sha256()
        with _full_disk_is_named(store.folder):
            self._fd = os.open(self._private, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, chunk: bytes) -> None:
        """Append bytes; raises :class:`OutOfSpace`, after which the upload is gone."""
        view = memoryview(chunk)
        try:
            with _full_disk_is_named(self._store.folder):
                while view:
                    view = view[os.write(self._fd, view) :]
                self._unsynced += len(chunk)
                if self._unsynced >= LARGE:
                    os.fdatasync(self._fd)
                    _leave_cache(self._fd, LARGE)
                    self._unsynced = 0
        except BaseException:
            self.abort()
            raise
        self._hash.update(chunk)
        self.size += len(chunk)

    def commit(self, sha256: str | None = None) -> tuple[str, int]:
        """Make the bytes durable and visible; raises :class:`HashMismatch`."""
        digest = self._hash.hexdigest()
        try:
            if sha256 is not None and checked_sha256(sha256) != digest:
                raise _mismatch(sha256, digest)
            with _full_disk_is_named(self._store.folder):
                os.fchmod(self._fd, 0o444)
                os.fsync(self._fd)
                _leave_cache(self._fd, self.size)
                self._store._publish(self._private, digest, self.size)
        finally:
            self.abort()
        return digest, self.size

    def abort(self) -> None:
        """Drop what was written."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._private.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def _hash(fd: int) -> tuple[str, int]:
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256")
        return digest.hexdigest(), file.tell()


def _leave_cache(fd: int, size: int) -> None:
    """Let go of the pages of a large file that is synced; see :data:`LARGE`."""
    if size >= LARGE:
        # a hint: some file systems know no page cache
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _has_writer(fd: int) -> bool:
    """Whether somebody has the file open for writing: the kernel grants a read lease only when nobody has."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        # other errors: this file system (or user) has no leases, and the caller's word must do
        return error.errno == errno.EAGAIN
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def _link(source: Path, target: Path) -> None:
    """Name ``source`` also ``target``; raises :class:`FileExistsError` rather than write over it."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # shares without hard links: claim the name, then put the whole file over our own empty claim
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
        source.rename(target)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _untouched(path: Path, seconds: float) -> bool:
    return seconds <= 0 or time.time() - path.stat().st_mtime >= seconds


@contextlib.contextmanager
def _full_disk_is_named(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise OutOfSpace(
                f"the store in {folder} is full ({error.strerror}): free some space or run `farm gc`"
            ) from error
        raise Unavailable(f"the store in {folder} cannot be written: {error.strerror}") from error


def _mismatch(wanted: str, found: str) -> HashMismatch:
    return HashMismatch(f"the bytes have SHA-256 {found}, not {wanted} as was said: send them again")


def _missing(sha256: str) -> NotFound:
    return NotFound(f"the store has no content with SHA-256 {sha256}")


def open_local(url: str, free_space_floor: int) -> LocalStore:
    """The store in the folder that a plain path or ``file://`` URL names."""
    return LocalStore(Path(url.removeprefix("file://")), free_space_floor=free_space_floor)
