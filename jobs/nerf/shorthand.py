"""The short form of a nerf job: photographs, a film or a transforms.json and a few options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from farm.errors import InvalidInput
from jobs.encode.shorthand import outputs_and_film
from jobs.nerf.names import is_junk, is_picture
from jobs.nerf.sources import FILMS

OPTIONS: Final = ("frames", "size", "seed", "device", "formats", "film", "fps")
_PLAIN: Final = {"frames": "frames", "size": "resolution", "seed": "seed", "device": "device"}


def build(
    source: Path, options: Mapping[str, Any], root: Path | None = None
) -> tuple[dict[str, Any], dict[str, Path]]:
    """Spec and files (by job path) of learning a scene from ``source``.

    ``source`` is a folder of photographs, a COLMAP model's folder, a .zip, a film or a transforms.json;
    ``root`` is the folder that the job's paths start in, by default the one that holds ``source``. Raises
    :class:`farm.errors.InvalidInput` for what is none of these.
    """
    if not source.exists():
        raise InvalidInput(f"there is no {source}")
    folder = (root or source.parent).absolute()
    try:
        name = source.absolute().relative_to(folder).as_posix()
    except ValueError:
        raise InvalidInput(f"{source} does not lie below --root {folder}") from None
    spec, files = _files(source.absolute(), name, folder)
    spec |= {field: options[key] for key, field in _PLAIN.items() if key in options}
    return spec | outputs_and_film(options), files


def _files(source: Path, name: str, folder: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    suffix = source.suffix.lower()
    if source.is_dir():
        models = [p for stem in ("cameras.bin", "cameras.txt") for p in sorted(source.rglob(stem))]
        kind = "colmap" if models else "images"
        inside = [p for p in sorted(source.rglob("*")) if p.is_file() and not is_junk(p.name)]
        wanted = inside if models else [p for p in inside if is_picture(p.name)]
        if not wanted:
            raise InvalidInput(f"{source} holds no pictures")
        return {"source": {"type": kind, "path": name}}, _named(wanted, folder)
    if suffix in FILMS:
        return {"source": {"type": "video", "path": name}}, {name: source}
    if suffix == ".zip":
        return {"source": {"type": "images", "path": name}}, {name: source}
    if suffix == ".json":
        return {"source": {"type": "transforms", "path": name}}, _named(_of_json(source), folder)
    raise InvalidInput(f"{source} is no folder of photographs, .zip, film or transforms.json")


def _of_json(source: Path) -> list[Path]:
    try:
        data = json.loads(source.read_text("utf-8"))
        frames = [frame for frame in data["frames"] if isinstance(frame, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidInput(f"{source} is no transforms.json: it has no list of frames") from None
    files = [source]
    for frame in frames:
        for key in ("file_path", "mask_path"):
            if isinstance(frame.get(key), str):
                path = source.parent / frame[key]
                files += [path] if path.is_file() else sorted(path.parent.glob(f"{path.name}.*"))[:1]
    others = [source.with_name(f"transforms_{split}.json") for split in ("train", "val", "test")]
    files += [p for p in others if source.name.startswith("transforms_") and p.is_file() and p != source]
    return files


def _named(files: list[Path], folder: Path) -> dict[str, Path]:
    found = {}
    for path in files:
        try:
            found[path.resolve().relative_to(folder.resolve()).as_posix()] = path
        except ValueError:
            raise InvalidInput(f"{path} does not lie below {folder}; --root names another folder") from None
    return found
