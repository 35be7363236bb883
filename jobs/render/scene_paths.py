"""Paths inside scene files: each must lead to a file of the job, checked before a renderer opens anything.

Mitsuba XML (with its includes), OBJ (``mtllib`` and the maps of its materials) and glTF binaries (buffer
and image URIs) are read here as text. What cannot be read is refused: an unread file is an unchecked file.
"""

from __future__ import annotations

import json
import os
import re
import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import unquote

from farm.errors import EscapedPath, PermanentFailure

MAX_TEXT: Final = 64 * 2**20
"""Largest XML or material file that is read, in bytes."""
_MAX_INCLUDES: Final = 15
_FILE_ATTRIBUTES: Final = {"filename", "file", "path", "src", "href"}
_FILE_STRINGS: Final = re.compile(r"(file|filename|path|directory|folder)$")
_MTL_MAPS: Final = re.compile(r"^\s*(map_\w+|bump|disp|decal|refl|norm)\s+(.*\S)\s*$", re.I | re.M)
_MTLLIB: Final = re.compile(rb"^[ \t]*mtllib[ \t]+([^\r\n]+)", re.M)
_REFUSED_XML: Final = re.compile(rb"<!\s*(DOCTYPE|ENTITY)", re.I)

Owner = Callable[[str], Path | None]
"""Gives the file that the farm placed under a job path, or ``None``."""


def check_scene(root: Path, scene: str, owner: Owner) -> set[str]:
    """Check every path that ``scene`` names, recursively; returns the job paths that it uses.

    ``root`` is the folder of the job's assets, ``scene`` a job path in it. A file that is reached through a
    symbolic link counts as the job's only where ``owner`` says that the farm put it there.

    Raises :class:`farm.errors.EscapedPath` for a path that leaves the assets (``../..``, absolute, a link
    out), and :class:`farm.errors.PermanentFailure` for a file that is missing or cannot be read.
    """
    checker = _Checker(root, owner)
    checker.visit(scene, scene)
    return checker.used


def looks_outside(text: str) -> bool:
    """Whether a string is an absolute path, a home, a drive, a URL, or climbs with ``..``."""
    plain = text.strip().replace("\\", "/")
    return (
        plain.startswith(("/", "~"))
        or re.match(r"^[A-Za-z]:/", plain) is not None
        or "://" in plain
        or ".." in PurePosixPath(plain).parts
    )


class _Checker:
    def __init__(self, root: Path, owner: Owner) -> None:
        self.root = root
        self.owner = owner
        self.used: set[str] = set()

    def visit(self, job_path: str, named_by: str, depth: int = 0) -> None:
        """Check one file of the job and all that it names."""
        if job_path in self.used:
            return
        path = self.file(job_path, named_by)
        self.used.add(job_path)
        suffix = PurePosixPath(job_path).suffix.lower()
        if suffix == ".xml":
            if depth > _MAX_INCLUDES:
                raise PermanentFailure(f"{job_path}: includes go deeper than {_MAX_INCLUDES} files")
            self.xml(job_path, path, depth)
        elif suffix == ".obj":
            self.obj(job_path, path)
        elif suffix == ".mtl":
            self.mtl(job_path, path)
        elif suffix == ".glb":
            self.gltf(job_path, read_glb_json(path, job_path))
        elif suffix == ".gltf":
            self.gltf(job_path, _parse_gltf(self.text(job_path, path), job_path))

    def file(self, job_path: str, named_by: str) -> Path:
        """The file at a job path; it must be there, be a plain file, and be the job's own."""
        path = self.root / job_path
        if not path.exists():
            raise PermanentFailure(
                f"{named_by} names {job_path}, which is not among the job's assets; attach it"
            )
        real = Path(os.path.realpath(path))
        inside = real.is_relative_to(os.path.realpath(self.root))
        if not inside:
            placed = self.owner(job_path)
            if placed is None or os.path.realpath(placed) != str(real):
                raise EscapedPath(f"{named_by} names {job_path}, a link that leaves the job's assets")
        if not real.is_file():
            raise PermanentFailure(f"{named_by} names {job_path}, which is not a file")
        return path

    def resolve(self, text: str, folders: list[PurePosixPath], named_by: str) -> str | None:
        """Job path of a name in a scene file: the first folder that has it. ``None`` for a folder."""
        plain = text.strip()
        if "\0" in plain or (looks_outside(plain) and not _stays_inside(plain, folders)):
            raise EscapedPath(
                f"{named_by} names {plain[:200]!r}, which leaves the job's assets; name a file of the job"
            )
        candidates = [_join(folder, plain) for folder in folders]
        inside = [c for c in candidates if c is not None]
        if not inside:
            raise EscapedPath(
                f"{named_by} names {plain[:200]!r}, which leaves the job's assets; name a file of the job"
            )
        found = next((c for c in inside if (self.root / c).exists()), inside[0])
        return None if (self.root / found).is_dir() else found

    def text(self, job_path: str, path: Path) -> bytes:
        if path.stat().st_size > MAX_TEXT:
            raise PermanentFailure(
                f"{job_path} is over {MAX_TEXT:,} bytes; keep meshes in files of their own"
            )
        return path.read_bytes()

    def xml(self, job_path: str, path: Path, depth: int) -> None:
        data = self.text(job_path, path)
        if _REFUSED_XML.search(data) or b"\0" in data:
            raise PermanentFailure(
                f"{job_path}: document types, entities and UTF-16 are refused in scene files"
            )
        try:
            tree = ElementTree.fromstring(data)
        except ElementTree.ParseError as error:
            raise PermanentFailure(f"{job_path} is not well-formed XML: {error}") from None
        defaults = {e.get("name", ""): e.get("value", "") for e in tree.iter("default")}
        home = PurePosixPath(job_path).parent
        folders = [home]
        for element in tree.iter("path"):
            text = _substitute(element.get("value", ""), defaults)
            folder = _join(home, text)
            if (looks_outside(text) and not _stays_inside(text, [home])) or folder is None:
                raise EscapedPath(f"{job_path} adds the search path {text[:200]!r}, outside the job's assets")
            folders.append(PurePosixPath(folder))
        for element in tree.iter():
            for name in self._names(element, defaults):
                found = self.resolve(name, folders, job_path)
                if found is not None:
                    self.visit(found, job_path, depth + 1)
            self._no_stray_paths(element, defaults, job_path)

    @staticmethod
    def _names(element: ElementTree.Element, defaults: dict[str, str]) -> Iterator[str]:
        """The file names that an element holds: an attribute, or a string property that is called so."""
        if element.tag == "path":
            return
        for attribute, value in element.attrib.items():
            if attribute.lower() in _FILE_ATTRIBUTES:
                yield _substitute(value, defaults)
        if element.tag == "string" and _FILE_STRINGS.search(element.get("name", "").lower()):
            yield _substitute(element.get("value", ""), defaults)

    @staticmethod
    def _no_stray_paths(element: ElementTree.Element, defaults: dict[str, str], job_path: str) -> None:
        """A string of any name that looks like a path out is refused, whatever a plugin might do with it."""
        if element.tag in {"string", "default"}:
            name, value = element.get("name", ""), _substitute(element.get("value", ""), defaults)
            if not _FILE_STRINGS.search(name.lower()) and looks_outside(value):
                home = [PurePosixPath(job_path).parent]
                if not _stays_inside(value, home):
                    raise EscapedPath(
                        f"{job_path}: {name!r} holds {value[:200]!r}, a path outside the job's assets"
                    )

    def obj(self, job_path: str, path: Path) -> None:
        home = [PurePosixPath(job_path).parent]
        with path.open("rb") as file:
            for line in file:
                match = _MTLLIB.match(line)
                if match:
                    name = match[1].decode("utf-8", "replace").strip()
                    found = self.resolve(name, home, job_path)
                    if found is not None:
                        self.visit(found, job_path)

    def mtl(self, job_path: str, path: Path) -> None:
        home = [PurePosixPath(job_path).parent]
        for match in _MTL_MAPS.finditer(self.text(job_path, path).decode("utf-8", "replace")):
            for name in _map_names(match[2]):
                found = self.resolve(name, home, job_path)
                if found is not None:
                    self.visit(found, job_path)

    def gltf(self, job_path: str, document: dict[str, Any]) -> None:
        home = [PurePosixPath(job_path).parent]
        for kind in ("buffers", "images"):
            for item in document.get(kind) or []:
                uri = item.get("uri") if isinstance(item, dict) else None
                if isinstance(uri, str) and not uri.startswith("data:"):
                    found = self.resolve(unquote(uri), home, job_path)
                    if found is not None:
                        self.visit(found, job_path)


def read_glb_json(path: Path, label: str) -> dict[str, Any]:
    """The JSON of a binary glTF 2.0. Raises :class:`farm.errors.PermanentFailure` where it is broken."""
    with path.open("rb") as file:
        head = file.read(20)
        if len(head) < 20 or head[:4] != b"glTF":
            raise PermanentFailure(f"{label} is not a binary glTF file: it does not begin with 'glTF'")
        version, total, length, kind = struct.unpack("<IIII", head[4:20])
        size = path.stat().st_size
        if version != 2:
            raise PermanentFailure(f"{label} is glTF version {version}; export it as glTF 2.0")
        if total > size or length > size - 20 or kind != 0x4E4F534A:
            raise PermanentFailure(f"{label} is cut short: it says {total:,} bytes and has {size:,}")
        return _parse_gltf(file.read(length), label)


def _parse_gltf(data: bytes, label: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise PermanentFailure(f"{label}: its JSON cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise PermanentFailure(f"{label}: its JSON is not an object")
    return document


def _join(folder: PurePosixPath, name: str) -> str | None:
    """``folder/name`` with ``..`` worked out, or ``None`` where it leaves the root."""
    parts: list[str] = []
    for part in (*folder.parts, *PurePosixPath(name.replace("\\", "/")).parts):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    return "/".join(parts)


def _stays_inside(name: str, folders: list[PurePosixPath]) -> bool:
    plain = name.replace("\\", "/")
    if plain.startswith(("/", "~")) or re.match(r"^[A-Za-z]:", plain) or "://" in plain:
        return False
    return any(_join(folder, plain) is not None for folder in folders)


def _substitute(value: str, defaults: dict[str, str]) -> str:
    """Mitsuba's ``$name`` replacement: longest names first."""
    for name in sorted(defaults, key=len, reverse=True):
        value = value.replace(f"${name}", defaults[name])
    return value


def _map_names(rest: str) -> Iterator[str]:
    """File names in the rest of a material's map line; options such as ``-bm 0.5`` come before the name."""
    words = rest.split()
    if not words[0].startswith("-"):
        yield rest
        return
    yield words[-1]
    for word in words:
        if looks_outside(word):
            yield word
