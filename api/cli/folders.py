"""Folders that commands write to, looked at before anything is asked of a farm."""

from __future__ import annotations

import os
from pathlib import Path

from farm.errors import InvalidInput


def check_folder(folder: Path, option: str) -> None:
    """Raise :class:`farm.errors.InvalidInput` where ``folder`` cannot be made or written into.

    ``option`` is what the person gave it with, such as ``--output``. Makes nothing.
    """
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if _stands(place))
        if not there.is_dir():
            raise InvalidInput(f"{option} {folder}: {there} is a file; name a folder")
        if not os.access(there, os.W_OK | os.X_OK):
            raise InvalidInput(
                f"{option} {folder}: you may not write in {there}; name a folder that you may write to"
            )
    except OSError as error:
        raise InvalidInput(f"{option} {folder}: {error.strerror}; name another folder") from error


def _stands(place: Path) -> bool:
    # a link to nowhere stands too: no folder can be made there
    try:
        place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
