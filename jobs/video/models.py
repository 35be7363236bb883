"""Versions of models: a folder's files by hash, and what the folder says about itself.

A version is named by its digest and never changes; an alias (``wan2.1-1.3b``) points at one version at a
time. Only safetensors are weights here. The documents lie in the database (:mod:`farm.repositories.models`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from farm.errors import PermanentFailure
from jobs.fields import Model
from jobs.video.facts import Facts
from jobs.video.gates import Gate

Lookup = Callable[[str], Mapping[str, Any] | None]
"""From ``name`` or ``name@digest`` to the document of a version, ``None`` where there is none."""
WEIGHTS: Final = ".safetensors"
SMALL: Final = 2**20
"""Bytes up to which a file is hashed whenever a version is loaded."""


class ModelFile(Model):
    """One file of a version."""

    path: str
    """Relative to the folder, with forward slashes."""
    bytes: int
    sha256: str


class ModelVersion(Model):
    """One immutable version; its document in the database is this model as JSON."""

    name: str
    digest: str
    folder: str
    """Absolute path; the same on every node (shared storage), as the store is."""
    remote_code: bool = False
    """An administrator allowed the Python that the folder brings."""
    files: list[ModelFile]
    facts: Facts
    gates: dict[str, Gate] = {}
    """Measured lossy choices (:mod:`jobs.video.gates`); these may grow, the files never change."""

    @property
    def label(self) -> str:
        """``name@digest``, shortened: how it is written for people and in specs."""
        return f"{self.name}@{self.digest[:12]}"


def version_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of :mod:`farm.repositories.models` as the document of a :class:`ModelVersion`."""
    names = ("name", "digest", "folder")
    return {**row["document"], **{name: row[name] for name in names}, "gates": row["measured"]}


def body_of(version: ModelVersion) -> dict[str, Any]:
    """What ``POST /v1/models`` takes for a version."""
    return version.model_dump(mode="json", include={"name", "folder", "remote_code", "files", "facts"})


def digest_of(files: Iterable[ModelFile]) -> str:
    """The version's digest: SHA-256 over ``sha256␠␠path\\n`` of every file, by path.

    The same as that of ``sha256sum`` run over the sorted files, piped into ``sha256sum``.
    """
    lines = (f"{file.sha256}  {file.path}\n" for file in sorted(files, key=lambda f: f.path))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check_folder(folder: Path, files: Iterable[ModelFile], *, hashes: bool) -> None:
    """Check that a folder still holds a version: every file there, of its size, and of its hash.

    Without ``hashes`` only small files (:data:`SMALL`) are hashed: configurations, which people edit, and not
    the weights, which would take minutes.

    Raises :class:`farm.errors.PermanentFailure` that names the first files that are not as they were.
    """
    wrong = []
    for file in files:
        path = folder / file.path
        try:
            size = path.stat().st_size
        except OSError as error:
            wrong.append(f"{file.path} ({error.strerror})")
            continue
        if size != file.bytes:
            wrong.append(f"{file.path} (has {size:,} bytes, not {file.bytes:,})")
        elif (hashes or size <= SMALL) and hash_file(path) != file.sha256:
            wrong.append(f"{file.path} (its contents changed)")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise PermanentFailure(
            f"the model folder {folder} is not what was added: {', '.join(wrong[:3])}{more}; "
            "put the files back, or add the folder again as a new version"
        )


def hash_file(path: Path, read: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file, read in pieces of 1 MiB; ``read`` is told the bytes of each."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
            if read is not None:
                read(len(piece))
    return digest.hexdigest()
