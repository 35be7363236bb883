"""One `farm up` a data folder.

The lock is inherited by the farm's processes, so it is free only when the last of them is gone: a `farm up`
started right after another was killed waits for the rest of that one to end.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from farm.errors import Conflict, InvalidInput

REST_S = 45.0


class DataLock:
    """The lock of a data folder; held until :meth:`release` and the end of every inheriting process."""

    def __init__(self, data: Path, *, rest_s: float = REST_S) -> None:
        try:
            data.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.fd = os.open(data / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidInput(
                f"cannot use the data folder {data}: {error.strerror}; choose another with FARM_DATA"
            ) from None
        try:
            self._take(data, time.monotonic() + rest_s)
        except BaseException:
            os.close(self.fd)
            raise
        self.note({"pid": os.getpid()})

    def _take(self, data: Path, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                holder = read_note(data)
                pid = holder.get("pid")
                if (isinstance(pid, int) and _alive(pid)) or time.monotonic() > deadline:
                    where = f" at {holder['url']}" if "url" in holder else ""
                    raise Conflict(
                        f"another `farm up` (process {pid}) runs on the data folder {data}{where}: use that "
                        "one, stop it, or choose another folder with FARM_DATA"
                    ) from None
                time.sleep(0.1)

    def note(self, content: dict[str, Any]) -> None:
        """Say in the lock file who holds it."""
        text = json.dumps(content).encode()
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, text, 0)

    def release(self) -> None:
        """Let go."""
        os.ftruncate(self.fd, 0)
        os.close(self.fd)


def read_note(data: Path) -> dict[str, Any]:
    """What the lock file says: ``pid`` and, once the farm is ready, ``url``; ``{}`` when nothing runs."""
    try:
        content = json.loads((data / "up.lock").read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
