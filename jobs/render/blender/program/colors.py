"""The job's OCIO configuration. Blender falls to its own in silence where it cannot read one: not here."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from .faults import BadInput


def check(bpy: Any) -> None:
    """Read the configuration that ``OCIO`` names once more, by Blender's own library.

    Raises :class:`BadInput` where it cannot be used.
    """
    path = os.environ.get("OCIO")
    if not path:
        return
    name = Path(path).name
    # the wheel keeps its own Python packages where its Python does not look
    own = Path(bpy.utils.resource_path("LOCAL"), "python", "lib")
    sys.path += [str(folder) for folder in own.glob("python3.*/site-packages") if str(folder) not in sys.path]
    try:
        library = importlib.import_module("PyOpenColorIO")
    except ImportError:
        raise BadInput(
            f"Blender {bpy.app.version_string} cannot check {name}; leave blender.ocio out, or choose a "
            "blender.version with PyOpenColorIO, such as 4.5"
        ) from None
    try:
        library.Config.CreateFromFile(path).validate()
    except Exception as error:  # noqa: BLE001 - the library's own class is there only once it is imported
        raise BadInput(f"the OCIO configuration {name} cannot be used: {error}") from None
