"""A job's assets as a read-only folder, made from the store by hash, once per slot and job."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from farm.errors import HashMismatch, NotFound, PermanentFailure
from farm.stores import Store

_FICLONE = 0x40049409
_COPY_BELOW = 4 * 2**20


class AssetFolder:
    """Files of one job below ``folder``, each fetched when it is first asked for.

    Small files are copied; big ones share blocks with the store where the file system can (reflink), else
    they are hard links to the store's read-only files, else copies. Copies are hashed on the way.
    """

    def __init__(self, folder: Path, assets: Mapping[str, str], store: Store) -> None:
        """``assets`` maps job paths to SHA-256."""
        self.folder = folder
        self._assets = dict(assets)
        self._store = store
        self._present: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def file(self, path: str) -> Path:
        """The file of that job path. Raises :class:`PermanentFailure` when the job has no such asset."""
        sha256 = self._assets.get(path)
        if sha256 is None:
            known = ", ".join(sorted(self._assets)[:10]) or "none"
            raise PermanentFailure(f"the job has no asset {path!r}; its assets are: {known}")
        target = self._target(path)
        if path not in self._present:
            self._fetch(sha256, target, path)
            self._present.add(path)
        return target

    def all(self) -> Path:
        """The folder with every asset in it."""
        for path in self._assets:
            self.file(path)
        return self.folder

    def remove(self) -> None:
        """Take the folder away again."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _target(self, path: str) -> Path:
        parts = PurePosixPath(path).parts
        # submission checks this too; a slot trusts nothing that becomes a path
        if not parts or path.startswith("/") or ".." in parts or "\x00" in path:
            raise PermanentFailure(f"the asset path {path!r} leads out of the job")
        return self.folder.joinpath(*parts)

    def _fetch(self, sha256: str, target: Path, path: str) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name[:40]}.part")
        temporary.unlink(missing_ok=True)
        try:
            source = self._store.path(sha256)
            if source is None or not self._share(source, temporary):
                self._copy(sha256, temporary, path)
            temporary.replace(target)
        except NotFound:
            raise PermanentFailure(
                f"the bytes of asset {path!r} are not in the store: upload them again"
            ) from None
        finally:
            temporary.unlink(missing_ok=True)

    def _share(self, source: Path, target: Path) -> bool:
        if source.stat().st_size < _COPY_BELOW:
            return False
        with source.open("rb") as reader, target.open("xb") as writer:
            try:
                fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
                os.fchmod(writer.fileno(), 0o444)
                return True
            except OSError:
                target.unlink()
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOTSUP):
                raise
            return False
        return True

    def _copy(self, sha256: str, target: Path, path: str) -> None:
        digest = hashlib.sha256()
        with contextlib.closing(self._store.open(sha256)) as reader, target.open("xb") as writer:
            while chunk := reader.read(1 << 20):
                digest.update(chunk)
                writer.write(chunk)
            os.fchmod(writer.fileno(), 0o444)
        if digest.hexdigest() != sha256:
            raise HashMismatch(f"asset {path!r}: the store's bytes do not have the SHA-256 {sha256}")
