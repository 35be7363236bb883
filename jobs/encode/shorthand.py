"""The short form of an encode job: an image sequence and a few options, for ``farm submit encode``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from farm.errors import FieldFault, InvalidInput
from farm.frame_range import FrameRange
from jobs.encode.spec import Sequence

OPTIONS: Final = ("frames", "film", "fps")


def outputs_and_film(options: Mapping[str, Any]) -> dict[str, Any]:
    """``outputs`` and ``film`` of a spec whose frames come first and may be filmed, from a command's options.

    Raises :class:`farm.errors.InvalidInput` for a rate of no film.
    """
    spec: dict[str, Any] = {}
    if "formats" in options:
        spec["outputs"] = list(options["formats"])
    if "film" in options:
        spec["film"] = {"formats": list(options["film"])}
        if "fps" in options:
            spec["film"]["fps"] = options["fps"]
    elif "fps" in options:
        raise InvalidInput("--fps is the film's: ask for one with --film mp4")
    return spec


def build(
    source: Path, options: Mapping[str, Any], root: Path | None = None
) -> tuple[dict[str, Any], dict[str, Path]]:
    """Spec and files (by job path) of encoding ``source``, a pattern such as ``shots/beauty.####.png``.

    ``options`` holds ``frames`` and may hold ``film`` (containers) and ``fps``. ``root`` is the folder that
    the job's paths start in, by default the pattern's own. Raises :class:`farm.errors.InvalidInput`.
    """
    if "frames" not in options:
        raise InvalidInput("say which frames are filmed with --frames 1-48")
    folder = root or source.parent
    try:
        pattern = source.absolute().relative_to(folder.absolute()).as_posix()
    except ValueError:
        raise InvalidInput(f"{source} does not lie below --root {folder}") from None
    numbers = FrameRange.parse(str(options["frames"]), pointer="/spec/source/frames")
    try:
        sequence = Sequence(pattern=pattern, frames=str(numbers))
    except ValidationError as error:
        message = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise InvalidInput(message, [FieldFault("/spec/source/pattern", message)]) from None
    files = {sequence.path(number): folder / sequence.path(number) for number in numbers}
    spec: dict[str, Any] = {"source": {"pattern": pattern, "frames": str(numbers)}}
    if "film" in options:
        spec["formats"] = list(options["film"])
    if "fps" in options:
        spec["fps"] = options["fps"]
    return spec, files
