"""What can be seen of a job's images and LoRAs at the door, from their headers alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from PIL import Image

from farm.errors import FieldFault, InvalidInput, InvalidSpec, PermanentFailure
from farm.plan import JobPlan
from jobs.video.lora import check_lora
from jobs.video.media import FORMATS, check_shape
from jobs.video.payload import Generation, read_step
from jobs.video.safetensors_header import read_header
from jobs.video.spec import Spec

_TURNED: Final = frozenset({5, 6, 7, 8})
"""EXIF orientations that swap width and height."""


def check(spec: Spec, plan: JobPlan, file: Callable[[str], Path | None]) -> None:
    """Look at the assets whose files are here (``file`` maps a job path to one, or ``None``).

    Raises :class:`farm.errors.InvalidSpec` that names each asset that the job cannot use. What this does not
    see (damage in the middle, a video's length), the engine does.
    """
    generation, faults = read_step(plan.steps[0].payload), list[FieldFault]()
    for name in ("image", "last_image"):
        path = getattr(spec, name)
        found = file(path) if path is not None else None
        if found is not None:
            try:
                _image(found, path, generation)
            except (PermanentFailure, InvalidInput) as error:
                faults.append(FieldFault(f"/spec/{name}", str(error)))
    for index, lora in enumerate(spec.loras):
        found = file(lora.path)
        if found is not None:
            try:
                with found.open("rb") as opened:
                    check_lora(read_header(opened, lora.path), generation.model.facts, lora.path)
            except InvalidInput as error:
                faults.append(FieldFault(f"/spec/loras/{index}/path", str(error)))
    if faults:
        raise InvalidSpec("; ".join(f"{f.pointer}: {f.message}" for f in faults), faults)


def _image(file: Path, path: str, generation: Generation) -> None:
    try:
        with Image.open(file, formats=FORMATS) as image:
            width, height = image.size
            if image.getexif().get(0x0112) in _TURNED:
                width, height = height, width
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InvalidInput(f"{path} cannot be read as {', '.join(FORMATS)}: {error}") from None
    check_shape(width, height, (generation.width, generation.height), generation.fit, path)
