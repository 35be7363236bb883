"""Meshes from .obj, .ply and .glb, with their materials, as Mitsuba shapes. Children only."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mitsuba as mi
import numpy as np

from farm.errors import NotInstalled, PermanentFailure
from jobs.render.camera import Bounds

_GREY = [0.55, 0.55, 0.56]


def load_shapes(path: Path, scratch: Path) -> tuple[dict[str, Any], Bounds, tuple[Any, Any]]:
    """Shapes of a mesh file as a Mitsuba dictionary, the sphere around them, and their corners.

    Textures and converted meshes are written into ``scratch``. Raises
    :class:`farm.errors.PermanentFailure` for a file that holds no triangles or
    cannot be read, with the reader's words.
    """
    if path.suffix.lower() == ".ply":
        shapes = {"mesh": _ply(path)}
        box = mi.load_dict(shapes["mesh"]).bbox()
        corners = [np.array(box.min), np.array(box.max)]
    else:
        shapes, corners = _by_trimesh(path, scratch)
    low, high = (np.asarray(c, dtype=np.float64).reshape(3) for c in corners)
    if not (np.isfinite(low).all() and np.isfinite(high).all()) or (high < low).any():
        raise PermanentFailure(f"{path.name} holds no surface with finite corners")
    middle = (low + high) / 2.0
    radius = float(np.linalg.norm(high - low) / 2.0)
    if radius <= 0.0:
        raise PermanentFailure(f"{path.name} is a single point; there is nothing to see")
    return shapes, Bounds((float(middle[0]), float(middle[1]), float(middle[2])), radius), (low, high)


def _ply(path: Path) -> dict[str, Any]:
    """Mitsuba reads PLY itself, colours of vertices too."""
    header = path.read_bytes()[:4096].split(b"end_header")[0]
    coloured = any(f"property {kind} r".encode() in header for kind in ("float", "uchar", "uint8", "float32"))
    reflectance: dict[str, Any] = {"type": "rgb", "value": _GREY}
    if coloured:
        reflectance = {"type": "mesh_attribute", "name": "vertex_color"}
    bsdf = {"type": "principled", "base_color": reflectance, "roughness": 0.5, "specular": 0.4}
    return {"type": "ply", "filename": str(path), "bsdf": {"type": "twosided", "nested": bsdf}}


def _by_trimesh(path: Path, scratch: Path) -> tuple[dict[str, Any], list[Any]]:
    try:
        trimesh = importlib.import_module("trimesh")
    except ImportError:
        raise NotInstalled(
            f"{path.suffix} files need the package trimesh: pip install 'stillframe[render]'"
        ) from None
    try:
        scene = trimesh.load_scene(str(path))
    except IndexError as error:
        raise PermanentFailure(
            f"{path.name} cannot be read: a face names a point, normal or texture point that the file "
            f"does not have ({error}); export it anew"
        ) from None
    except Exception as error:  # noqa: BLE001  a reader of untrusted files may raise anything
        raise PermanentFailure(f"{path.name} cannot be read: {type(error).__name__}: {error}") from None
    shapes: dict[str, Any] = {}
    corners: list[Any] = [np.full(3, np.inf), np.full(3, -np.inf)]
    for index, (mesh, transform) in enumerate(_instances(scene, trimesh)):
        points = trimesh.transform_points(np.asarray(mesh.vertices), transform)
        if not len(mesh.faces):
            continue
        corners = [np.minimum(corners[0], points.min(0)), np.maximum(corners[1], points.max(0))]
        target = scratch / f"mesh-{index}.ply"
        attributes = _write_ply(target, mesh, points, transform)
        shape: dict[str, Any] = {"type": "ply", "filename": str(target)}
        shape["bsdf"] = _material(mesh, attributes, scratch, index)
        emission = _emission(mesh)
        if emission is not None:
            shape["emitter"] = {"type": "area", "radiance": {"type": "rgb", "value": emission}}
        shapes[f"mesh_{index}"] = shape
    if not shapes:
        raise PermanentFailure(f"{path.name} holds no triangles; points and lines are not rendered")
    return shapes, corners


def _instances(scene: Any, trimesh: Any) -> Iterator[tuple[Any, Any]]:
    for node in scene.graph.nodes_geometry:
        transform, name = scene.graph[node]
        mesh = scene.geometry[name]
        if isinstance(mesh, trimesh.Trimesh):
            yield mesh, np.asarray(transform, dtype=np.float64)


def _write_ply(target: Path, mesh: Any, points: Any, transform: Any) -> bool:
    """Write a mesh for Mitsuba; returns whether it carries colours of vertices."""
    fields = ["x", "y", "z", "nx", "ny", "nz"]
    normals = np.asarray(mesh.vertex_normals) @ np.linalg.pinv(transform[:3, :3])
    length = np.linalg.norm(normals, axis=1, keepdims=True)
    columns = [points, normals / np.where(length > 0, length, 1.0)]
    uv = getattr(mesh.visual, "uv", None)
    if uv is not None and len(uv) == len(points):
        fields += ["u", "v"]
        # trimesh counts v from the bottom of the image, Mitsuba from its top
        columns.append(np.stack([uv[:, 0], 1.0 - uv[:, 1]], -1))
    coloured = mesh.visual.kind == "vertex" and mesh.visual.defined
    if coloured:
        fields += ["r", "g", "b"]
        encoded = np.asarray(mesh.visual.vertex_colors)[:, :3] / 255.0
        columns.append(np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4))
    table = np.concatenate(columns, axis=1).astype("<f4")
    faces = np.asarray(mesh.faces)
    if np.linalg.det(transform[:3, :3]) < 0:
        faces = faces[:, ::-1]
    rows = np.zeros(len(faces), dtype=[("n", "u1"), ("i", "<i4", 3)])
    rows["n"], rows["i"] = 3, faces
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {len(table)}"]
    header += [f"property float {name}" for name in fields]
    header += [f"element face {len(faces)}", "property list uchar int vertex_indices", "end_header"]
    target.write_bytes("\n".join(header).encode() + b"\n" + table.tobytes() + rows.tobytes())
    return bool(coloured)


def _material(mesh: Any, coloured: bool, scratch: Path, index: int) -> dict[str, Any]:
    """A principled material from a glTF or OBJ one: colour, metalness, roughness, opacity."""
    material = getattr(mesh.visual, "material", None)
    if material is not None and hasattr(material, "to_pbr") and not hasattr(material, "metallicFactor"):
        material = material.to_pbr()
    principled: dict[str, Any] = {"type": "principled", "specular": 0.5}
    factor = _factor(getattr(material, "baseColorFactor", None))
    image = getattr(material, "baseColorTexture", None)
    opacity: Any = factor[3]
    if coloured:
        principled["base_color"] = {"type": "mesh_attribute", "name": "vertex_color"}
    elif image is not None:
        picture = image.convert("RGBA")
        principled["base_color"] = _texture(picture.convert("RGB"), factor[:3], scratch / f"base-{index}.png")
        alpha = picture.getchannel("A")
        mode = getattr(material, "alphaMode", None) or "OPAQUE"
        if mode != "OPAQUE" and alpha.getextrema()[0] < 255:
            path = scratch / f"alpha-{index}.png"
            alpha.save(path)
            opacity = {"type": "bitmap", "filename": str(path), "raw": True}
    else:
        principled["base_color"] = {
            "type": "rgb",
            "value": list(factor[:3]) if material is not None else _GREY,
        }
    metallic, rough = getattr(material, "metallicFactor", None), getattr(material, "roughnessFactor", None)
    packed = getattr(material, "metallicRoughnessTexture", None)
    principled["metallic"] = (
        0.0 if metallic is None and packed is None else float(1.0 if metallic is None else metallic)
    )
    principled["roughness"] = max(
        0.03, 0.5 if rough is None and packed is None else float(1.0 if rough is None else rough)
    )
    if packed is not None:
        for channel, name in ((2, "metallic"), (1, "roughness")):
            values = packed.convert("RGB").getchannel(channel).point(lambda v, f=principled[name]: int(v * f))
            path = scratch / f"{name}-{index}.png"
            values.save(path)
            principled[name] = {"type": "bitmap", "filename": str(path), "raw": True}
    bsdf: dict[str, Any] = {"type": "twosided", "nested": principled}
    if not isinstance(opacity, float) or opacity < 1.0:
        if isinstance(opacity, float) and (getattr(material, "alphaMode", None) or "OPAQUE") == "OPAQUE":
            return bsdf
        return {"type": "mask", "opacity": opacity, "nested": bsdf}
    return bsdf


def _factor(value: Any) -> tuple[float, float, float, float]:
    """A colour factor, linear, 0 to 1; trimesh keeps some as bytes."""
    if value is None:
        return (1.0, 1.0, 1.0, 1.0)
    array = np.asarray(value)
    numbers = array.astype(np.float64) / (255.0 if array.dtype == np.uint8 else 1.0)
    padded = [*numbers.tolist(), 1.0][:4]
    return (float(padded[0]), float(padded[1]), float(padded[2]), float(padded[3]))


def _texture(picture: Any, factor: tuple[float, ...], path: Path) -> dict[str, Any]:
    if any(abs(f - 1.0) > 1e-6 for f in factor):
        encoded = np.asarray(picture, dtype=np.float32) / 255.0
        linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
        scaled = np.clip(linear * np.array(factor, np.float32), 0, 1)
        back = np.where(scaled <= 0.0031308, 12.92 * scaled, 1.055 * scaled ** (1 / 2.4) - 0.055)
        picture = _image(np.rint(back * 255.0).astype(np.uint8))
    picture.save(path)
    return {"type": "bitmap", "filename": str(path)}


def _image(pixels: Any) -> Any:
    from PIL import Image

    return Image.fromarray(pixels)


def _emission(mesh: Any) -> list[float] | None:
    material = getattr(mesh.visual, "material", None)
    value = getattr(material, "emissiveFactor", None)
    if value is None or getattr(material, "emissiveTexture", None) is not None:
        return None
    emission = [float(v) for v in np.asarray(value, dtype=np.float64).reshape(-1)[:3]]
    return emission if max(emission) > 0 else None
