"""The short form of a render job: a scene file and a few options, for ``farm submit``."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from farm.errors import FieldFault, InvalidInput, TaskFailed
from jobs.encode.shorthand import outputs_and_film
from jobs.render.scene_paths import check_scene
from jobs.render.spec import SCENE_SUFFIXES

SUFFIXES: Final = SCENE_SUFFIXES
"""Files that ``farm submit FILE`` takes for a render, without the kind."""
OPTIONS: Final = (
    "frames", "size", "samples", "device", "seed", "formats", "film", "fps", "allow_outside",
)  # fmt: skip
_PLAIN = {"frames": "frames", "size": "resolution", "samples": "samples", "device": "device", "seed": "seed"}
_SELF_CONTAINED: Final = (".usd", ".usda", ".usdc", ".usdz")


class Gathered(dict[str, Path]):
    """Job path to local file. ``notes`` are lines for the person; copies made on the way live as long."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = ""
        self.notes: list[str] = []
        self._copies: tempfile.TemporaryDirectory[str] | None = None

    def keep(self, job_path: str, source: Path) -> None:
        """Copy a file that is about to go."""
        if self._copies is None:
            self._copies = tempfile.TemporaryDirectory(prefix="stillframe-submit-")
        self[job_path] = Path(shutil.copyfile(source, Path(self._copies.name) / str(len(self))))


def build(
    source: Path, options: Mapping[str, Any], root: Path | None = None
) -> tuple[dict[str, Any], Gathered]:
    """Spec and files (by job path) of rendering ``source``.

    ``options`` may hold those of :data:`OPTIONS`. Every file that the scene names comes along; ``root`` is
    the folder that the job's paths start in, by default the scene's own.

    Raises :class:`farm.errors.InvalidInput` for a scene that is missing, broken, or reaches out of ``root``.
    """
    if not source.is_file():
        raise InvalidInput(f"there is no file {source}")
    files = collect(source, root, allow_outside=bool(options.get("allow_outside")))
    spec: dict[str, Any] = {"scene": files.scene}
    spec |= {field: options[name] for name, field in _PLAIN.items() if name in options}
    return spec | outputs_and_film(options), files


def collect(source: Path, root: Path | None = None, *, allow_outside: bool = False) -> Gathered:
    """The scene and every file that it names, by job path; those of a .blend outside its folder (``root``)
    with ``allow_outside`` alone. Raises like :func:`build`.
    """
    suffix = source.suffix.lower()
    if suffix not in SCENE_SUFFIXES:
        raise InvalidInput(f"{source} is no scene that can be rendered: {', '.join(SCENE_SUFFIXES)}")
    if suffix == ".blend":
        return _blend(source, root, allow_outside)
    if allow_outside:
        raise InvalidInput("--allow-outside is for .blend files; name the folder of others with --root")
    folder = root or source.parent
    files = Gathered()
    files.scene = _job_path(source, folder)
    if suffix in _SELF_CONTAINED:
        files[files.scene] = source
        if suffix != ".usdz":
            files.notes.append(f"{source.name}: files that a {suffix} names are not looked for, nor sent")
        return files
    try:
        # a link inside the folder is the person's own doing here: what it leads to is sent as a plain file
        used = check_scene(folder, files.scene, lambda job_path: folder / job_path)
    except (TaskFailed, OSError) as error:
        raise InvalidInput(
            f"{error}. Paths are looked up below {folder}; --root names another folder",
            [FieldFault("/spec/scene", str(error))],
        ) from None
    files.update({job_path: folder / job_path for job_path in sorted(used)})
    return files


def _blend(source: Path, root: Path | None, allow_outside: bool) -> Gathered:
    from jobs.render.blender.collect import collect as gather

    files = Gathered()
    with gather(source, root, allow_outside=allow_outside) as found:
        files.scene = found.scene
        for job_path, path in found.files.items():
            if job_path in found.rewritten:
                files.keep(job_path, path)
            else:
                files[job_path] = path
        files.notes += [f"made the absolute paths in {job_path} relative" for job_path in found.rewritten]
        files.notes += [f"not found, and not sent: {path}" for path in found.missing]
        files.notes += [
            f"left out: {path} is no image, film, sound, font, cache or scene file; to send it anyway, "
            "name it in the assets of a job file (--spec)"
            for path in found.left_out
        ]
        files.notes += [
            f"{block} could not be followed: files that it names alone are not sent" for block in found.unread
        ]
    return files


def _job_path(source: Path, root: Path) -> str:
    if not source.is_file():
        raise InvalidInput(f"there is no file {source}")
    try:
        return source.absolute().relative_to(root.absolute()).as_posix()
    except ValueError:
        raise InvalidInput(f"{source} does not lie below --root {root}") from None
