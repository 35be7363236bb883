"""Where the farm is and which key to use: the environment, else the user's key file.

The key file (``~/.config/stillframe/key.json``, mode 0600; ``FARM_KEY_FILE`` names another) holds the farm
that was started last (``url``, ``key``) and, under ``farms``, every farm whose first key was made on this
machine, by data folder::

    {"url": "http://127.0.0.1:8630", "key": "…", "farms": {"/data/farm": {"url": "…", "key": "…"}}}

``FARM_URL`` and ``FARM_KEY`` win over it.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.errors import InvalidInput, Unauthenticated

DEFAULT_URL = "http://127.0.0.1:8630"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A farm's address and a key for it."""

    url: str
    key: str


def key_file() -> Path:
    """Path of the user's key file."""
    named = os.environ.get("FARM_KEY_FILE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "stillframe" / "key.json"


def find_credentials(url: str | None = None, key: str | None = None) -> Credentials:
    """The farm to talk to. Raises :class:`farm.errors.Unauthenticated` when no key can be found.

    An address given (or in ``FARM_URL``) never gets the key of another farm: only a key given with it, or
    one that the key file holds for that very address.
    """
    url = (url or os.environ.get("FARM_URL") or "").rstrip("/")
    key = key or os.environ.get("FARM_KEY")
    if url and not url.startswith(("http://", "https://")):
        raise InvalidInput(f"FARM_URL is {url!r}; it must begin with http:// or https://")
    if url and key:
        return Credentials(url, key)
    stored = read_key_file()
    known = [stored, *stored.get("farms", {}).values()]
    if url:
        for entry in known:
            if entry.get("url") == url and entry.get("key"):
                return Credentials(url, entry["key"])
        raise Unauthenticated(f"no key for {url}: set FARM_KEY, or start that farm here with `farm up`")
    if key:
        return Credentials(stored.get("url") or DEFAULT_URL, key)
    if stored.get("key"):
        return Credentials(stored.get("url") or DEFAULT_URL, stored["key"])
    raise Unauthenticated(
        f"no key: FARM_KEY is not set and {key_file()} holds none. "
        "Start a farm here with `farm up`, or ask its administrator for a key and set FARM_URL and FARM_KEY"
    )


def stored_for(data: Path) -> Credentials | None:
    """The key that was made for the farm of this data folder, if it was made by this user."""
    entry = read_key_file().get("farms", {}).get(str(data.resolve()))
    return Credentials(entry["url"], entry["key"]) if entry else None


def remember(data: Path, credentials: Credentials) -> Path:
    """Keep the key of the farm of this data folder, and make that farm the one to talk to."""
    content = read_key_file()
    farms = content.setdefault("farms", {})
    farms[str(data.resolve())] = {"url": credentials.url, "key": credentials.key}
    content |= {"url": credentials.url, "key": credentials.key}
    _write(content)
    return key_file()


def forget(data: Path) -> None:
    """Drop the key of a data folder; the farm remembered before it becomes the one to talk to again."""
    content = read_key_file()
    farms = content.get("farms", {})
    gone = farms.pop(str(data.resolve()), None)
    if gone is None:
        return
    if content.get("key") == gone["key"]:
        last = next(reversed(farms.values()), None)
        content |= last or {"url": "", "key": ""}
    if farms or content.get("key"):
        _write(content)
    else:
        key_file().unlink(missing_ok=True)


def read_key_file() -> dict[str, Any]:
    """Content of the key file, ``{}`` without one. Raises :class:`farm.errors.InvalidInput` for rubbish."""
    path = key_file()
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidInput(f"cannot read the key file {path}: {error.strerror}") from None
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o600)
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("farms", {}), dict):
        raise InvalidInput(f"the key file {path} is not a key file: move it away, or set FARM_KEY")
    return content


def _write(content: dict[str, Any]) -> None:
    path = key_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # mkstemp makes the file with mode 0600, so the key is never readable by others, not even briefly
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".key-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InvalidInput(
            f"cannot write the key file {path}: {error.strerror}; name another with FARM_KEY_FILE"
        ) from None
