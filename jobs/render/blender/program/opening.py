"""Opens a .blend without running anything in it, or imports a scene of another format."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import trees
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
    scene = bpy.context.scene
    # a .usd with time codes sets its own; anything else is one frame unless something in it moves
    scene.frame_start = scene.frame_end = 1
    group, name = IMPORTERS[suffix]
    try:
        outcome = getattr(getattr(bpy.ops, group), name)(filepath=str(path))
    except RuntimeError as error:
        raise BadInput(f"{path.name} cannot be imported: {error}") from None
    if "FINISHED" not in outcome or not bpy.data.objects:
        raise BadInput(f"{path.name} cannot be imported, or holds no object")
    # an import has no wishes of its own: Cycles, and light enough to see by (see `lights`)
    scene.render.engine = "CYCLES"
    played = list(_played(bpy.data))
    if played:
        scene.frame_start = math.floor(min(first for first, _ in played))
        scene.frame_end = math.ceil(max(last for _, last in played))


def _played(data: Any) -> Iterator[tuple[float, float]]:
    """First and last frame of every action that plays: the others of a file wait in muted tracks."""
    for block in trees.datablocks(data):
        animation = getattr(block, "animation_data", None)
        if animation is None:
            continue
        if animation.action is not None:
            first, last = animation.action.frame_range
            yield first, last
        for track in animation.nla_tracks:
            for strip in () if track.mute else track.strips:
                yield strip.frame_start, strip.frame_end
