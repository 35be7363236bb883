"""What a .blend says before Blender opens it: the engines of its scenes, and every path that it names.

Read by blender-asset-tracer in the slot. Blender maps an engine that no longer exists to another in silence,
and opens linked libraries while it opens the file: both are looked at first.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from farm.errors import EscapedPath, NotInstalled, PermanentFailure

KNOWN_ENGINES: Final = {
    "CYCLES": "cycles",
    "BLENDER_EEVEE": "eevee",
    "BLENDER_EEVEE_NEXT": "eevee",
    "BLENDER_WORKBENCH": "workbench",
}
"""Engines as files name them, and what a job calls them."""


@dataclass(frozen=True, slots=True)
class SceneFile:
    """``engines`` and ``views`` map scenes to the engine and the view transform that the file names;
    ``outside`` are paths that leave the job; ``saved_by`` is the Blender that wrote it (major, minor)."""

    engines: dict[str, str]
    views: dict[str, str]
    outside: tuple[str, ...]
    saved_by: tuple[int, int]

    def fits(self, scene: str, version: str) -> None:
        """Raise :class:`farm.errors.PermanentFailure` where Blender ``version`` is older than the file.

        Some versions crash on a file of the future, so this is said before they see it.
        """
        if self.saved_by > tuple(int(part) for part in version.split(".")):
            saved = ".".join(map(str, self.saved_by))
            raise PermanentFailure(
                f"{scene} was saved by Blender {saved}, and this node renders it with {version}; name a "
                "blender.version that is at least as new, or save the file for an older one"
            )


def read(root: Path, scene: str, *, confined: bool) -> SceneFile:
    """Look into the .blend at job path ``scene`` below ``root``.

    A path that leaves the assets counts as missing where the child cannot see it (``confined``).

    Raises :class:`farm.errors.PermanentFailure` for a file that is no .blend, and
    :class:`farm.errors.EscapedPath` where an unconfined Blender would open a file outside the job's assets.
    """
    try:
        from blender_asset_tracer import blendfile, trace
    except ImportError:
        raise NotInstalled(
            "reading .blend files needs blender-asset-tracer: pip install 'stillframe[render]'"
        ) from None
    logging.getLogger("blender_asset_tracer").setLevel(logging.ERROR)
    path = root / scene
    inside = Path(os.path.realpath(root))
    outside = []
    try:
        # stays open: the tracer takes it from the cache, and reads it once
        blend = blendfile.open_cached(path)
        saved_by = divmod(int(blend.header.version), 100)
        engines, views = {}, {}
        for block in blend.find_blocks_from_code(b"SC"):
            name = (block.id_name or b"")[2:].decode("utf-8", "replace")
            engines[name] = str(block.get((b"r", b"engine"), as_str=True))
            views[name] = str(block.get((b"view_settings", b"view_transform"), as_str=True))
        for usage in trace.deps(path):
            target = Path(os.path.realpath(usage.abspath))
            if target.is_relative_to(inside):
                continue
            named = bytes(usage.asset_path or b"").decode("utf-8", "replace")
            outside.append(named)
            if not confined and target.exists():
                raise EscapedPath(
                    f"{scene} names {named[:200]!r}, which leaves the job's assets; name a file of the job"
                )
    except EscapedPath:
        raise
    except Exception as error:  # noqa: BLE001  the tracer raises whatever a broken file leads it to
        raise PermanentFailure(f"{scene} cannot be read as a .blend file: {error}") from None
    finally:
        blendfile.close_all_cached()
    return SceneFile(engines, views, tuple(outside), saved_by)
