"""Opens a .blend without running anything in it, or imports a scene of another format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .faults import BadInput

IMPORTERS = {
    ".glb": ("import_scene", "gltf"),
    ".gltf": ("import_scene", "gltf"),
    ".obj": ("wm", "obj_import"),
    ".ply": ("wm", "ply_import"),
    ".usd": ("wm", "usd_import"),
    ".usda": ("wm", "usd_import"),
    ".usdc": ("wm", "usd_import"),
    ".usdz": ("wm", "usd_import"),
}


def open_scene(bpy: Any, path: Path) -> None:
    """Make ``path`` the open file. Raises :class:`BadInput` for a file that Blender cannot read."""
    suffix = path.suffix.lower()
    if suffix == ".blend":
        _open_blend(bpy, path)
    elif suffix in IMPORTERS:
        _import(bpy, path, suffix)
    else:
        raise BadInput(f"{path.name}: Blender opens .blend and imports {', '.join(sorted(IMPORTERS))}")


def _open_blend(bpy: Any, path: Path) -> None:
    try:
        bpy.ops.wm.open_mainfile(filepath=str(path), load_ui=False, use_scripts=False)
    except RuntimeError as error:
        raise BadInput(f"{path.name} cannot be opened by Blender {bpy.app.version_string}: {error}") from None
    if tuple(bpy.data.version[:2]) > tuple(bpy.app.version[:2]):
        saved = ".".join(map(str, bpy.data.version[:2]))
        raise BadInput(
            f"{path.name} was saved by Blender {saved}, this node has {bpy.app.version_string}; "
            "save it for this version, or choose a Blender version that is at least as new"
        )


def _import(bpy: Any, path: Path, suffix: str) -> None:
    bpy.ops.wm.read_factory_settings(use_empty=True)
    group, name = IMPORTERS[suffix]
    try:
        outcome = getattr(getattr(bpy.ops, group), name)(filepath=str(path))
    except RuntimeError as error:
        raise BadInput(f"{path.name} cannot be imported: {error}") from None
    if "FINISHED" not in outcome or not bpy.data.objects:
        raise BadInput(f"{path.name} cannot be imported, or holds no object")
    # an import has no wishes of its own: Cycles, and light enough to see by (see `lights`)
    bpy.context.scene.render.engine = "CYCLES"
