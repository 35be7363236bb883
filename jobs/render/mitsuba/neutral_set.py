"""A neutral lit set for meshes that come without light: soft key, cool rim, pale surroundings, a floor.

Everything is placed by the mesh's own size, so that a ring and a house are lit alike. Children only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mitsuba as mi
import numpy as np

from jobs.render.camera import Bounds, OrbitCamera
from jobs.render.mitsuba.meshes import load_shapes
from jobs.render.spec import Spec

_DEPTH = 8


def build(path: Path, spec: Spec, scratch: Path) -> tuple[Any, Any, Bounds]:
    """Scene, sensor and the sphere around the mesh. A transparent job gets no floor and no backdrop."""
    from jobs.render.mitsuba.scene import make_sensor

    shapes, bounds, (low, _) = load_shapes(path, scratch)
    camera = spec.resolved_camera
    up = camera.up if isinstance(camera, OrbitCamera) else _up_of(camera)
    wanted: dict[str, Any] = {
        "type": "scene",
        "integrator": {
            "type": "path",
            "max_depth": spec.max_depth or _DEPTH,
            "hide_emitters": spec.transparent,
        },
        **shapes,
        **_lights(bounds, up),
    }
    if not spec.transparent:
        wanted["floor"] = _floor(bounds, low, up)
    radius = bounds.radius
    sensor = make_sensor({"type": "perspective", "near_clip": radius * 1e-4, "far_clip": radius * 1e5}, spec)
    # not merged, so that every child makes the same noise
    return mi.load_dict(wanted, optimize=False), sensor, bounds


def _up_of(camera: Any) -> str:
    first = camera.keyframes[0].up
    return "z" if abs(first[2]) > abs(first[1]) else "y"


def _frame(up: str) -> Any:
    """Turns a set that was built with y up so that ``up`` is up."""
    transform = mi.ScalarTransform4f
    return transform() if up == "y" else transform().rotate([1, 0, 0], 90)


def _lights(bounds: Bounds, up: str) -> dict[str, Any]:
    transform = mi.ScalarTransform4f
    r, middle = bounds.radius, np.array(bounds.center)
    placed = transform().translate(middle.tolist()) @ _frame(up)

    def panel(origin: list[float], size: float, radiance: list[float]) -> dict[str, Any]:
        aim = transform().look_at(origin=[r * o for o in origin], target=[0, 0, 0], up=[0.01, 1, 0])
        return {
            "type": "rectangle",
            "to_world": placed @ aim @ transform().scale([size * r, size * r, 1]),
            "emitter": {"type": "area", "radiance": {"type": "rgb", "value": radiance}},
        }

    return {
        "surroundings": {"type": "envmap", "bitmap": _surroundings(), "to_world": _frame(up), "scale": 1.0},
        "key": panel([9.0, 14.0, 10.0], 3.2, [13.0, 12.2, 11.0]),
        "rim": panel([-10.0, 11.0, -9.0], 2.6, [8.0, 9.2, 11.0]),
    }


def _surroundings() -> Any:
    """A pale gradient, brightest at the horizon, so that the floor runs into it."""
    height, width = 64, 128
    v = (np.arange(height) + 0.5) / height
    above = np.clip((0.5 - v) / 0.5, 0, 1)[:, None]
    low, high = np.array([0.50, 0.51, 0.53]), np.array([0.22, 0.25, 0.31])
    column = low + above**0.7 * (high - low)
    pixels = np.broadcast_to(column[:, None], (height, width, 3)).astype(np.float32)
    return mi.Bitmap(np.ascontiguousarray(pixels))


def _floor(bounds: Bounds, low: Any, up: str) -> dict[str, Any]:
    transform = mi.ScalarTransform4f
    place = np.array(bounds.center)
    axis = 1 if up == "y" else 2
    place[axis] = float(low[axis]) - 1e-4 * bounds.radius
    flat = transform().rotate([1, 0, 0], -90) if up == "y" else transform()
    return {
        "type": "disk",
        "to_world": transform().translate(place.tolist()) @ flat @ transform().scale(400.0 * bounds.radius),
        "bsdf": {"type": "diffuse", "reflectance": {"type": "rgb", "value": [0.42, 0.42, 0.43]}},
    }
