"""Which files are photographs, and which are junk that systems leave beside them, by name alone."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".heic", ".heif")
"""Files that count as photographs."""
_JUNK = re.compile(r"(^|/)(__MACOSX/|\.(?!\.?/)|Thumbs\.db$|desktop\.ini$|@eaDir/)", re.IGNORECASE)


def is_junk(name: str) -> bool:
    """Whether a path names something that systems leave beside photographs (``__MACOSX/._x.jpg``)."""
    return _JUNK.search(PurePosixPath(name).as_posix()) is not None


def is_picture(name: str) -> bool:
    """Whether a path names a photograph."""
    return name.lower().endswith(SUFFIXES) and not is_junk(name)
