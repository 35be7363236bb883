"""The short form of a render job: a scene file and a few options, for ``farm submit render``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.errors import FieldFault, InvalidInput, TaskFailed
from jobs.render.scene_paths import check_scene
from jobs.render.spec import SCENE_SUFFIXES

_PLAIN = {"frames": "frames", "size": "resolution", "samples": "samples", "device": "device", "seed": "seed"}


def build(
    source: Path, options: Mapping[str, Any], root: Path | None = None
) -> tuple[dict[str, Any], dict[str, Path]]:
    """Spec and files (by job path) of rendering ``source``.

    ``options`` may hold ``frames, size, samples, device, seed, formats, film, fps``. Every file that the
    scene names comes along; ``root`` is the folder that the job's paths start in, by default the scene's own.

    Raises :class:`farm.errors.InvalidInput` for a scene that is missing, broken, or reaches out of ``root``.
    """
    spec: dict[str, Any] = {"scene": _job_path(source, root or source.parent)}
    spec |= {field: options[name] for name, field in _PLAIN.items() if name in options}
    if "formats" in options:
        spec["outputs"] = list(options["formats"])
    if "film" in options:
        spec["film"] = {"formats": list(options["film"])}
        if "fps" in options:
            spec["film"]["fps"] = options["fps"]
    elif "fps" in options:
        raise InvalidInput("--fps is the film's: ask for one with --film mp4")
    return spec, collect(source, root)


def collect(source: Path, root: Path | None = None) -> dict[str, Path]:
    """The scene and every file that it names, by job path. Raises like :func:`build`."""
    folder = root or source.parent
    scene = _job_path(source, folder)
    if source.suffix.lower() not in SCENE_SUFFIXES:
        raise InvalidInput(f"{source} is no scene that can be rendered: {', '.join(SCENE_SUFFIXES)}")
    try:
        # a link inside the folder is the person's own doing here: what it leads to is sent as a plain file
        used = check_scene(folder, scene, lambda job_path: folder / job_path)
    except (TaskFailed, OSError) as error:
        raise InvalidInput(
            f"{error}. Paths are looked up below {folder}; --root names another folder",
            [FieldFault("/spec/scene", str(error))],
        ) from None
    return {job_path: folder / job_path for job_path in sorted(used)}


def _job_path(source: Path, root: Path) -> str:
    if not source.is_file():
        raise InvalidInput(f"there is no file {source}")
    try:
        return source.absolute().relative_to(root.absolute()).as_posix()
    except ValueError:
        raise InvalidInput(f"{source} does not lie below --root {root}") from None
