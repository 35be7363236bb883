"""Preflight: what an opened file holds, needs and lacks. Nothing in the file is run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import cameras, files, passes, trees

_DRIVE = re.compile(r"^[A-Za-z]:[\\/]")
_MESH_BYTES_PER_VERTEX = 120
_SHOWN = 6


def inspect(bpy: Any, root: str, frames: list[int] | None = None) -> dict[str, Any]:
    """Everything the preflight reports about the open file.

    ``root`` is the folder of the job's assets; a file that is used but lies outside it counts as escaped.
    ``frames`` are those that the job names, else the file's own count: a sequence must hold what they show.
    Findings are dictionaries ``{"code", "severity", "message", ...}`` with severity ``error`` (fails the
    job unless ``allow_missing``), ``warning`` or ``note``.
    """
    data, scene = bpy.data, bpy.context.scene
    own = range(scene.frame_start, scene.frame_end + 1, scene.frame_step)
    findings = [
        *_files(bpy, root, list(own) if frames is None else frames),
        *_missing_datablocks(data),
        *_scripts(bpy),
        *_unbaked(data),
        *_left_out(data),
        *_switched(data),
    ]
    return {
        "blender": bpy.app.version_string,
        "file_version": ".".join(str(part) for part in data.version),
        "scenes": [_scene(scene) for scene in data.scenes],
        "active_scene": bpy.context.scene.name,
        "estimated_memory": memory(data, bpy.context.scene),
        "counts": {
            "objects": len(data.objects),
            "meshes": len(data.meshes),
            "materials": len(data.materials),
            "images": sum(image.source != "VIEWER" for image in data.images),
            "libraries": len(data.libraries),
        },
        "findings": findings,
    }


def _scene(scene: Any) -> dict[str, Any]:
    render = scene.render
    cycles = getattr(scene, "cycles", None)
    return {
        "name": scene.name,
        "engine": render.engine,
        "camera": scene.camera.name if scene.camera else None,
        "cameras": sorted(item.name for item in scene.objects if item.type == "CAMERA"),
        "lights": sum(item.type == "LIGHT" for item in scene.objects),
        "has_world_light": _world_shines(scene),
        "view_layers": [layer.name for layer in scene.view_layers],
        "frame_start": scene.frame_start,
        "frame_end": scene.frame_end,
        "frame_step": scene.frame_step,
        "fps": render.fps / render.fps_base,
        "resolution": [render.resolution_x, render.resolution_y],
        "resolution_percentage": render.resolution_percentage,
        "samples": cycles.samples if cycles and render.engine == "CYCLES" else scene.eevee.taa_render_samples,
        "motion_blur": render.use_motion_blur,
        "view_transform": scene.view_settings.view_transform,
        "compositor": bool(passes.compositor_tree(scene) is not None and render.use_compositing),
        "sequencer": bool(render.use_sequencer and _strips(scene.sequence_editor)),
    }


def _strips(editor: Any) -> Any:
    """The strips of a sequence editor, which 4.4 gave that name."""
    if editor is None:
        return ()
    return editor.strips_all if hasattr(editor, "strips_all") else editor.sequences_all


def _world_shines(scene: Any) -> bool:
    world = scene.world
    if world is None:
        return False
    if not world.use_nodes or world.node_tree is None:
        return any(channel > 0 for channel in world.color)
    for node in world.node_tree.nodes:
        if node.type == "BACKGROUND":
            strength, color = node.inputs["Strength"], node.inputs["Color"]
            if strength.is_linked or color.is_linked:
                return True
            if strength.default_value > 0 and any(channel > 0 for channel in color.default_value[:3]):
                return True
    return False


_MISSING = {"missing_file", "missing_datablock", "foreign_path", "outside_assets"}
"""Findings that ``allow_missing`` lets pass."""


def _finding(code: str, severity: str, message: str, **more: Any) -> dict[str, Any]:
    return {"code": code, "severity": severity, "message": message, "missing": code in _MISSING, **more}


def _files(bpy: Any, root: str, frames: list[int]) -> Iterator[dict[str, Any]]:
    inside = os.path.realpath(root)
    for each in files.used(bpy.data, frames):
        what, name, written = each.what, each.name, each.written
        about = {"what": what, "name": name, "path": written, "users": each.users}
        if what != "library" and each.users == 0:
            continue
        # pictures need no sound
        severity = "warning" if what == "sound" else "error"
        if _DRIVE.match(written) or written.startswith("\\\\"):
            yield _finding(
                "foreign_path",
                severity,
                f"{what} {name!r} has a path of another system: {written!r}",
                **about,
            )
            continue
        absolute = os.path.realpath(bpy.path.abspath(written, library=each.library).replace("\\", "/"))
        if not written.startswith("//"):
            yield _finding(
                "absolute_path", "warning", f"{what} {name!r} has an absolute path: {written!r}", **about
            )
        if os.path.commonpath([inside, absolute]) != inside:
            yield _finding(
                "outside_assets",
                severity,
                f"{what} {name!r} lies outside the job's files: {written!r}",
                **about,
            )
            continue
        lost = files.lacking(each, absolute)
        if lost:
            words = f"{what} {name!r} is missing: {written!r}"
            if each.numbers is not None or len(each.tiles) > 1:
                shown = ", ".join(lost[:_SHOWN]) + (
                    f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
                )
                words += f" lacks {shown}"
            yield _finding("missing_file", severity, words, **about)


def _there(path: str) -> bool:
    return Path(path).exists()


def _missing_datablocks(data: Any) -> Iterator[dict[str, Any]]:
    for collection in (
        data.objects,
        data.collections,
        data.meshes,
        data.materials,
        data.node_groups,
        data.worlds,
    ):
        for block in collection:
            # 4.1 was the first to tell
            if getattr(block, "is_missing", False):
                source = block.library.filepath if block.library else "?"
                yield _finding(
                    "missing_datablock",
                    "error",
                    f"linked {block.bl_rna.identifier} {block.name!r} is not in {source!r}",
                    name=block.name,
                    path=source,
                )


def _scripts(bpy: Any) -> Iterator[dict[str, Any]]:
    data = bpy.data
    for text in data.texts:
        if text.use_module:
            yield _finding(
                "script",
                "warning",
                f"text {text.name!r} is set to run at load; it will not run",
                name=text.name,
            )
    for block, driver_path in _scripted_drivers(data):
        yield _finding(
            "driver",
            "warning",
            f"driver on {block.name!r} {driver_path} is a Python expression; it will not run",
            name=block.name,
            path=driver_path,
        )
    for tree, owner in trees.every(data):
        for node in tree.nodes:
            if node.type == "SCRIPT":
                yield _finding(
                    "osl",
                    "warning",
                    f"script node {node.name!r} in {owner.name!r} will not run",
                    name=node.name,
                )


def _scripted_drivers(data: Any) -> Iterator[tuple[Any, str]]:
    for block in trees.datablocks(data):
        tree = trees.embedded(block)
        for owner in (block,) if tree is None else (block, tree):
            animation = getattr(owner, "animation_data", None)
            for curve in animation.drivers if animation else ():
                if curve.driver.type == "SCRIPTED" and not curve.driver.is_simple_expression:
                    yield block, curve.data_path


def _unbaked(data: Any) -> Iterator[dict[str, Any]]:
    for item in data.objects:
        for modifier in item.modifiers:
            cache = getattr(modifier, "point_cache", None)
            if modifier.type in {"CLOTH", "SOFT_BODY"} and cache is not None and not cache.is_baked:
                yield _not_baked(modifier.type.lower().replace("_", " "), item.name)
            if modifier.type == "FLUID" and modifier.fluid_type == "DOMAIN":
                domain = modifier.domain_settings
                baked = domain.has_cache_baked_data or domain.has_cache_baked_any
                if not baked:
                    yield _not_baked("fluid", item.name)
            if modifier.type == "DYNAMIC_PAINT" and modifier.canvas_settings is not None:
                for surface in modifier.canvas_settings.canvas_surfaces:
                    if surface.surface_type != "PAINT" and not surface.point_cache.is_baked:
                        yield _not_baked("dynamic paint", item.name)
            if modifier.type == "NODES" and modifier.node_group is not None:
                simulates = any(
                    node.bl_idname == "GeometryNodeSimulationOutput"
                    for node in trees.within(modifier.node_group)
                )
                if simulates and not any(_there(b.directory) for b in modifier.bakes if b.directory):
                    yield _not_baked("simulation nodes", item.name)
        for system in item.particle_systems:
            hair = system.settings.type == "HAIR"
            moving = system.use_hair_dynamics if hair else system.settings.physics_type != "NO"
            if moving and not system.point_cache.is_baked:
                yield _not_baked("hair dynamics" if hair else "particles", item.name)
    for scene in data.scenes:
        world = scene.rigidbody_world
        if world is not None and world.enabled and world.collection and not world.point_cache.is_baked:
            yield _not_baked("rigid bodies", scene.name)


def _left_out(data: Any) -> Iterator[dict[str, Any]]:
    """What a file asks for and a farm does not do (see ``setup``): said, not dropped in silence."""
    for scene in data.scenes:
        render, cycles = scene.render, getattr(scene, "cycles", None)
        words = []
        if render.use_sequencer and _strips(scene.sequence_editor):
            words.append("its sequencer's edit is not rendered, the scene is")
        if render.use_multiview:
            words.append("its stereoscopic views are not rendered, one view is")
        if render.use_border and render.use_crop_to_border:
            words.append("its pictures are not cropped to its border, they keep their size")
        if render.use_stamp:
            words.append("its stamp is not burnt into the pictures")
        if cycles is not None and render.engine == "CYCLES" and cycles.time_limit > 0:
            words.append(f"its time limit of {cycles.time_limit:g} s a frame is not kept, its samples are")
        if cycles is not None and render.engine == "CYCLES" and cycles.shading_system:
            words.append("its Open Shading Language is switched off: script nodes do not run")
        for each in words:
            yield _finding("left_out", "warning", f"scene {scene.name!r}: {each}", name=scene.name)
    outputs = [f"{node.name!r} in {owner.name!r}" for owner, node in trees.file_outputs(data)]
    if outputs:
        text = f"the file's output nodes write nothing: {', '.join(outputs[:8])}"
        yield _finding("left_out", "warning", text)


def _switched(data: Any) -> Iterator[dict[str, Any]]:
    for scene in data.scenes:
        bound = cameras.markers(scene)
        if bound:
            shown = ", ".join(f"{each['camera']!r} from frame {each['frame']}" for each in bound[:8])
            text = f"scene {scene.name!r}: markers switch the camera ({shown}), unless the job names a camera"
            yield _finding("camera_markers", "note", text, name=scene.name)


def _not_baked(what: str, name: str) -> dict[str, Any]:
    return _finding(
        "not_baked",
        "warning",
        f"{what} of {name!r} is not baked: frames that are rendered apart will not agree; bake it and save",
        name=name,
    )


def memory(data: Any, scene: Any, channels: int = 16) -> int:
    """Rough bytes that a render needs: meshes with their acceleration structure, textures, frame buffers.

    ``channels`` are those of a pixel, 4 bytes each: as the scene is set up, whoever set it.
    """
    total = 150_000_000
    for mesh in data.meshes:
        total += len(mesh.vertices) * _MESH_BYTES_PER_VERTEX + len(mesh.loops) * 32 + len(mesh.polygons) * 96
    for image in data.images:
        if image.source != "VIEWER":
            total += image.size[0] * image.size[1] * max(image.channels, 4) * (4 if image.is_float else 1)
    render = scene.render
    width = render.resolution_x * render.resolution_percentage // 100
    height = render.resolution_y * render.resolution_percentage // 100
    # the engine's own, the result, and the picture that is written
    return int(total + width * height * (max(channels, 4) * 2 + 4) * 4)
