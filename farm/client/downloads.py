"""Files that come out, checked against their hash before they get their name."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from farm.client.transport import Transport
from farm.errors import HashMismatch, InvalidInput, OutOfSpace, Unavailable

TRIES = 4


def download(
    transport: Transport,
    path: str,
    target: Path,
    sha256: str,
    received: Callable[[int], None] | None = None,
) -> Path:
    """Fetch ``path`` (on the farm) into the file ``target``; a file that is already right is left alone.

    A broken transfer goes on where it stopped. The file appears under its name only when its SHA-256 is
    right; raises :class:`farm.errors.HashMismatch` otherwise, and leaves nothing behind.
    """
    try:
        if target.is_file() and _sha256(target) == sha256:
            return target
        if target.is_dir():
            raise InvalidInput(f"{target} is a folder; name a file")
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:60]}-")
    except OSError as error:
        raise _unwritable(target, error) from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            for attempt in range(TRIES):
                start = file.tell()
                # as they are in the store: hashes and ranges are of those bytes
                headers = {"Accept-Encoding": "identity"}
                if start:
                    headers["Range"] = f"bytes={start}-"
                try:
                    with transport.stream(path, headers=headers) as response:
                        if start and response.status_code != 206:
                            file.seek(0)
                            file.truncate()
                        for chunk in response.iter_raw():
                            file.write(chunk)
                            if received:
                                received(len(chunk))
                    break
                except Unavailable:
                    if attempt == TRIES - 1:
                        raise
            file.flush()
            os.fsync(file.fileno())
        found = _sha256(temporary)
        if found != sha256:
            raise HashMismatch(f"{target.name}: the farm sent bytes with SHA-256 {found}, not {sha256}")
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        return temporary.replace(target)
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _unwritable(target: Path, error: OSError) -> OutOfSpace | InvalidInput:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutOfSpace(
            f"no space left in {target.parent} for {target.name}; free some, or choose another place"
        )
    return InvalidInput(f"cannot write {target}: {error.strerror}; choose another place")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
