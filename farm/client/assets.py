"""Files that go in: hashed here, and sent only where the farm lacks them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from farm.client.transport import Transport
from farm.errors import FieldFault, HashMismatch, InvalidInput

CHUNK = 1 << 20
_QUERY = 500

Sent = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class LocalAsset:
    """A file on this machine and its hash."""

    path: Path
    sha256: str
    bytes: int


def hash_file(path: Path) -> LocalAsset:
    """Hash a file. Raises :class:`farm.errors.InvalidInput` when it cannot be read."""
    digest = hashlib.sha256()
    size = 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    return LocalAsset(path, digest.hexdigest(), size)


def hash_assets(files: Mapping[str, Path]) -> dict[str, LocalAsset]:
    """Hash files by job path. Raises :class:`farm.errors.InvalidInput` naming the path that is missing."""
    found: dict[str, LocalAsset] = {}
    for name, path in files.items():
        if not path.is_file():
            message = f"{name}: there is no file {path}"
            raise InvalidInput(message, [FieldFault(f"/assets/{name}", message)])
        found[name] = hash_file(path)
    return found


def missing_hashes(transport: Transport, hashes: Iterable[str]) -> set[str]:
    """Those of the hashes whose bytes the farm lacks."""
    wanted = sorted(set(hashes))
    missing: set[str] = set()
    for start in range(0, len(wanted), _QUERY):
        body = {"sha256": wanted[start : start + _QUERY]}
        answer = transport.post("/v1/assets/missing", json=body)
        missing |= set(answer.json()["missing"])
    return missing


def upload(transport: Transport, assets: Mapping[str, LocalAsset], sent: Sent | None = None) -> int:
    """Send what the farm lacks, each content once; returns the bytes sent.

    ``sent`` is called with the number of bytes of every chunk that went out. Raises
    :class:`farm.errors.HashMismatch` when a file changed after it was hashed.
    """
    by_hash = {asset.sha256: asset for asset in assets.values()}
    total = 0
    for sha256 in sorted(missing_hashes(transport, by_hash)):
        asset = by_hash[sha256]
        if asset.path.stat().st_size != asset.bytes:
            raise HashMismatch(f"{asset.path} changed while it was being sent; submit again")
        transport.request(
            "PUT",
            f"/v1/assets/{sha256}",
            content=lambda asset=asset: _chunks(asset.path, sent),  # type: ignore[misc]
            headers={"Content-Length": str(asset.bytes), "Content-Type": "application/octet-stream"},
        )
        total += asset.bytes
    return total


def _chunks(path: Path, sent: Sent | None) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
            if sent:
                sent(len(chunk))
