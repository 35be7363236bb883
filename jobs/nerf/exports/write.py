"""The files that a job exports: splats, mesh, points, COLMAP model, cameras."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from jobs.engine import Host
from jobs.nerf.exports.crop import check_seen, crop_mesh, inside
from jobs.nerf.exports.splat_files import write_ply, write_spz
from jobs.nerf.exports.surface import surface, to_glb
from jobs.nerf.held import Held
from jobs.nerf.methods.compositing import SH
from jobs.nerf.scene import Scene, View
from jobs.nerf.spec import Spec, safe_name

Made = tuple[str, Path, str, dict[str, Any]]
_FLIP: Final = np.diag([1.0, -1.0, -1.0, 1.0])
CROPPED: Final = ("ply", "spz", "mesh", "points")
"""Exports that the crop box cuts."""
_ZERO_DATE: Final = (1980, 1, 1, 0, 0, 0)


def export(spec: Spec, held: Held, host: Host) -> list[Made]:
    """Name, file, media type and facts of every export. All stand in the scene's coordinates, but the
    COLMAP model, which stands in the source's; ``world`` takes the source's to the scene's."""
    makers = {
        "ply": _ply, "spz": _spz, "mesh": _mesh, "points": _points, "colmap": _colmap, "cameras": _cameras,
    }  # fmt: skip
    if spec.crop != "none":
        check_seen(spec.crop, held.scene.views)
    made = []
    for index, name in enumerate(spec.exports):
        host.check()
        file, path, media_type, facts = makers[name](spec, held, host)
        facts = {
            **facts,
            **({"crop": spec.crop} if name in CROPPED else {}),
            "world": held.scene.world.tolist(),
            "coordinates": facts.get("coordinates", "scene"),
        }
        made.append((file, path, media_type, facts))
        host.progress((index + 1) / len(spec.exports), file)
        host.log.write(f"{file}: {path.stat().st_size:,} bytes, {_short(facts)}")
    return made


def _short(facts: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in facts.items() if isinstance(v, int | str))


def _splats(spec: Spec, held: Held) -> dict[str, Any]:
    values = held.field.state()
    names = ("means", "scales", "quats", "opacities", "sh0", "shN")
    found = {name: values[name].detach().float().cpu().numpy() for name in names}
    if spec.crop == "none":
        return found
    kept = inside(found["means"], spec.crop, "the splats")
    return {name: value[kept] for name, value in found.items()}


def _surface(spec: Spec, held: Held, host: Host) -> tuple[Any, Any, Any]:
    found = surface(held.field, spec.mesh_resolution, host.check)
    return found if spec.crop == "none" else crop_mesh(*found, spec.crop)


def _ply(spec: Spec, held: Held, host: Host) -> Made:
    values = _splats(spec, held)
    path = host.scratch / "splats.ply"
    comments = ["made by stillframe", f"world {json.dumps(held.scene.world.tolist())}"]
    if spec.crop != "none":
        comments.append(f"crop {json.dumps(spec.crop)}")
    write_ply(path, values, comments)
    return path.name, path, "application/ply", {"gaussians": len(values["means"]), "up": "z"}


def _spz(spec: Spec, held: Held, host: Host) -> Made:
    values = _splats(spec, held)
    path = host.scratch / "splats.spz"
    write_spz(path, values)
    return path.name, path, "application/octet-stream", {"gaussians": len(values["means"]), "up": "z"}


def _mesh(spec: Spec, held: Held, host: Host) -> Made:
    vertices, faces, colours = _surface(spec, held, host)
    path = host.scratch / "mesh.glb"
    path.write_bytes(
        to_glb(vertices, faces, colours, {"world": held.scene.world.tolist(), "crop": spec.crop})
    )
    facts = {"vertices": len(vertices), "faces": len(faces), "up": "y"}
    return path.name, path, "model/gltf-binary", facts


def _points(spec: Spec, held: Held, host: Host) -> Made:
    """Centres of the Gaussians, or vertices of the surface."""
    if spec.method == "splat":
        values = _splats(spec, held)
        solid = values["opacities"] > 0.0
        places = values["means"][solid]
        colours = np.clip(values["sh0"][solid, 0] * SH[0] + 0.5, 0, 1)
        bytes_ = (colours * 255 + 0.5).astype(np.uint8)
    else:
        places, _, bytes_ = _surface(spec, held, host)
    path = host.scratch / "points.ply"
    rows = np.zeros(len(places), dtype=[("xyz", "<f4", 3), ("rgb", "u1", 3)])
    rows["xyz"], rows["rgb"] = places, bytes_
    head = (
        "ply\nformat binary_little_endian 1.0\ncomment made by stillframe\n"
        f"element vertex {len(rows)}\nproperty float x\nproperty float y\nproperty float z\n"
        "property uchar red\nproperty uchar green\nproperty uchar blue\nend_header\n"
    )
    path.write_bytes(head.encode() + rows.tobytes())
    return path.name, path, "application/ply", {"points": len(rows), "up": "z"}


def _cameras(spec: Spec, held: Held, host: Host) -> Made:
    path = host.scratch / "cameras.json"
    path.write_text(json.dumps(held.scene.to_json(), indent=1), "utf-8")
    return path.name, path, "application/json", {"views": len(held.scene.views)}


def _colmap(spec: Spec, held: Held, host: Host) -> Made:
    """A text model in the source's coordinates, zipped."""
    scene = held.scene
    back = np.linalg.inv(scene.world)
    cameras, images = ["# id model width height fx fy cx cy"], ["# id qw qx qy qz tx ty tz camera name"]
    for number, view in enumerate(scene.views, 1):
        cameras.append(
            f"{number} PINHOLE {view.width} {view.height} {view.fx!r} {view.fy!r} {view.cx!r} {view.cy!r}"
        )
        quat, shift = _colmap_pose(view, back)
        numbers = " ".join(repr(float(value)) for value in (*quat, *shift))
        images += [f"{number} {numbers} {number} {Path(view.file).name or safe_name(view.name)}", ""]
    path = host.scratch / "colmap.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, lines in (
            ("cameras.txt", cameras), ("images.txt", images), ("points3D.txt", _point_lines(scene, back)),
        ):  # fmt: skip
            archive.writestr(zipfile.ZipInfo(f"sparse/0/{name}", _ZERO_DATE), "\n".join(lines) + "\n")
    facts = {"views": len(scene.views), "points": len(scene.points), "coordinates": "source"}
    return path.name, path, "application/zip", facts


def _colmap_pose(view: View, back: Any) -> tuple[Any, Any]:
    """Quaternion (w first) and translation of world-to-camera, COLMAP's axes."""
    matrix = view.moved(back).matrix @ _FLIP
    turn = matrix[:3, :3].T
    shift = -turn @ matrix[:3, 3]
    # the eigenvector of the largest eigenvalue is the quaternion, whatever the angle (Bar-Itzhack 2000)
    m = turn
    k = (
        np.array(
            [
                [m[0, 0] - m[1, 1] - m[2, 2], 0, 0, 0],
                [m[0, 1] + m[1, 0], m[1, 1] - m[0, 0] - m[2, 2], 0, 0],
                [m[0, 2] + m[2, 0], m[1, 2] + m[2, 1], m[2, 2] - m[0, 0] - m[1, 1], 0],
                [m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1], m[0, 0] + m[1, 1] + m[2, 2]],
            ]
        )
        / 3.0
    )
    values, vectors = np.linalg.eigh(k)
    x, y, z, w = vectors[:, int(values.argmax())]
    quat = np.array([w, x, y, z])
    return quat * (1.0 if w >= 0 else -1.0), shift


def _point_lines(scene: Scene, back: Any) -> list[str]:
    lines = ["# id x y z r g b error track"]
    for number, row in enumerate(scene.points, 1):
        x, y, z = back[:3, :3] @ row[:3] + back[:3, 3]
        r, g, b = (int(value * 255 + 0.5) for value in row[3:6])
        lines.append(f"{number} {float(x)!r} {float(y)!r} {float(z)!r} {r} {g} {b} 0")
    return lines
