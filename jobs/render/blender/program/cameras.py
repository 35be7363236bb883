"""The camera that frames every visible object, where the job asks for camera ``auto``."""

from __future__ import annotations

import math
from typing import Any

from .faults import BadInput

# from the front right and a little above, as a product is photographed
_DIRECTION = (0.62, -1.0, 0.45)
_MARGIN = 1.12


def add_auto_camera(bpy: Any, scene: Any, view_layer: Any, frames: list[int]) -> Any:
    """A new camera that sees every visible object at each of ``frames``; it becomes the scene's camera.

    Raises :class:`BadInput` when nothing visible has an extent.
    """
    from mathutils import Vector

    points: list[Any] = []
    before = scene.frame_current
    for frame in frames:
        scene.frame_set(frame)
        points.extend(_corners(bpy, view_layer))
    scene.frame_set(before)
    if not points:
        raise BadInput(
            "camera 'auto' finds no visible object to look at; name a camera or make objects visible"
        )
    camera = bpy.data.cameras.new("stillframe auto")
    holder = bpy.data.objects.new("stillframe auto", camera)
    scene.collection.objects.link(holder)
    holder.rotation_euler = (-Vector(_DIRECTION)).to_track_quat("-Z", "Y").to_euler()
    scene.camera = holder
    turn = holder.rotation_euler.to_matrix()
    seen = [turn.transposed() @ point for point in points]
    holder.location = turn @ Vector(fit([tuple(point) for point in seen], *_half_tangents(scene, camera)))
    middle = sum(points, Vector()) / len(points)
    size = max((point - middle).length for point in points)
    distance = (holder.location - middle).length
    camera.clip_start = max(distance - size * 1.5, distance * 1e-3, 1e-4)
    camera.clip_end = distance + size * 4
    if not math.isfinite(distance) or distance == 0:
        raise BadInput("camera 'auto' finds only one point to look at; name a camera")
    return holder


def markers(scene: Any) -> list[dict[str, Any]]:
    """The markers that switch the camera: ``{"frame", "camera"}`` in the order of time."""
    bound = [(marker.frame, marker.camera.name) for marker in scene.timeline_markers if marker.camera]
    return [{"frame": frame, "camera": name} for frame, name in sorted(bound)]


def fit(points: list[tuple[float, float, float]], tan_x: float, tan_y: float) -> tuple[float, float, float]:
    """The nearest camera position that sees all ``points``; everything in the camera's own axes.

    The camera looks along -z. A point is inside the frustum where ``|x - cx| <= (cz - z) * tan_x``: the two
    planes of an axis give the centre, their sum the distance, and the axis that needs more distance wins.
    """
    right = max(x + z * tan_x for x, _, z in points)
    left = max(-x + z * tan_x for x, _, z in points)
    top = max(y + z * tan_y for _, y, z in points)
    bottom = max(-y + z * tan_y for _, y, z in points)
    depth = max((right + left) / (2 * tan_x), (top + bottom) / (2 * tan_y))
    return (right - left) / 2, (top - bottom) / 2, depth


def _half_tangents(scene: Any, camera: Any) -> tuple[float, float]:
    render = scene.render
    width = render.resolution_x * render.pixel_aspect_x
    height = render.resolution_y * render.pixel_aspect_y
    wide = camera.sensor_width / 2 / camera.lens / _MARGIN
    return (wide, wide * height / width) if width >= height else (wide * width / height, wide)


def _corners(bpy: Any, view_layer: Any) -> list[Any]:
    from mathutils import Vector

    corners: list[Any] = []
    depsgraph = view_layer.depsgraph
    depsgraph.update()
    for instance in depsgraph.object_instances:
        item = instance.object
        if item.type not in {
            "MESH",
            "CURVE",
            "CURVES",
            "SURFACE",
            "META",
            "FONT",
            "VOLUME",
            "POINTCLOUD",
            "GPENCIL",
        }:
            continue
        if item.original.hide_render or not instance.show_self:
            continue
        box = [Vector(corner) for corner in item.bound_box]
        if (box[6] - box[0]).length == 0:
            continue
        corners.extend(instance.matrix_world @ corner for corner in box)
    return corners
