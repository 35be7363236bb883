"""Make the demo scene: ``python -m jobs.render.demo_scene.make_scene``. Meshes and textures are computed.

A still life on a terrazzo stage: a golden trefoil knot on a marble plinth, a glazed vase, a glass ball, two
bevelled blocks, and marbles. Same bytes on every run: all randomness is seeded.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Array = npt.NDArray[Any]
HERE = Path(__file__).resolve().parent


def write_ply(path: Path, points: Array, normals: Array, uv: Array, faces: Array) -> None:
    """Binary PLY. points and normals (n, 3), uv (n, 2), faces (m, 3)."""
    vertices = np.zeros(
        len(points), dtype=[(name, "<f4") for name in ("x", "y", "z", "nx", "ny", "nz", "u", "v")]
    )
    for index, name in enumerate(("x", "y", "z")):
        vertices[name] = points[:, index]
        vertices[f"n{name}"] = normals[:, index]
    vertices["u"], vertices["v"] = uv[:, 0], uv[:, 1]
    rows = np.zeros(len(faces), dtype=[("n", "u1"), ("a", "<i4"), ("b", "<i4"), ("c", "<i4")])
    rows["n"], rows["a"], rows["b"], rows["c"] = 3, faces[:, 0], faces[:, 1], faces[:, 2]
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {len(points)}"]
    header += [f"property float {name}" for name in vertices.dtype.names or ()]
    header += [f"element face {len(faces)}", "property list uchar int vertex_indices", "end_header"]
    path.write_bytes("\n".join(header).encode() + b"\n" + vertices.tobytes() + rows.tobytes())


def grid_faces(rows: int, columns: int) -> Array:
    """Triangles of a grid of (rows + 1) x (columns + 1) points."""
    index = np.arange((rows + 1) * (columns + 1)).reshape(rows + 1, columns + 1)
    a, b, c, d = index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]
    return np.concatenate([np.stack([a, b, c], -1).reshape(-1, 3), np.stack([a, c, d], -1).reshape(-1, 3)])


def knot(rows: int = 360, columns: int = 28) -> tuple[Array, Array, Array, Array]:
    """A trefoil tube, upright in the x-y plane, about 2.6 wide."""
    t = np.linspace(0.0, 2.0 * math.pi, rows + 1)
    big = 2.0 + np.cos(3.0 * t)
    line = np.stack([big * np.cos(2.0 * t), big * np.sin(2.0 * t), -np.sin(3.0 * t)], -1)
    step = 1e-4
    ahead = 2.0 + np.cos(3.0 * (t + step))
    next_line = np.stack(
        [ahead * np.cos(2.0 * (t + step)), ahead * np.sin(2.0 * (t + step)), -np.sin(3.0 * (t + step))], -1
    )
    tangent = next_line - line
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    # the spine winds around a torus: the direction from the torus's core circle turns smoothly along it
    core = np.stack([2.0 * np.cos(2.0 * t), 2.0 * np.sin(2.0 * t), np.zeros_like(t)], -1)
    side = line - core
    side -= (side * tangent).sum(1, keepdims=True) * tangent
    side /= np.linalg.norm(side, axis=1, keepdims=True)
    other = np.cross(tangent, side)
    angle = np.linspace(0.0, 2.0 * math.pi, columns + 1)
    normals = np.cos(angle)[None, :, None] * side[:, None] + np.sin(angle)[None, :, None] * other[:, None]
    points = (line[:, None] + 0.46 * normals) * 0.42
    u, v = np.meshgrid(np.linspace(0, 6, rows + 1), np.linspace(0, 1, columns + 1), indexing="ij")
    faces = grid_faces(rows, columns)[:, ::-1]
    return points.reshape(-1, 3), normals.reshape(-1, 3), np.stack([u, v], -1).reshape(-1, 2), faces


def lathe(profile: Array, columns: int = 72) -> tuple[Array, Array, Array, Array]:
    """Turn a profile of (radius, height) around the y axis; v follows the length of the profile."""
    angle = np.linspace(0.0, 2.0 * math.pi, columns + 1)
    radius, height = profile[:, 0], profile[:, 1]
    points = np.stack(
        [
            radius[:, None] * np.sin(angle),
            np.broadcast_to(height[:, None], (len(profile), columns + 1)),
            radius[:, None] * np.cos(angle),
        ],
        -1,
    )
    along = np.gradient(profile, axis=0)
    out, rise = along[:, 1], -along[:, 0]
    length = np.maximum(np.hypot(out, rise), 1e-9)
    out, rise = out / length, rise / length
    normals = np.stack(
        [
            out[:, None] * np.sin(angle),
            np.broadcast_to(rise[:, None], points.shape[:2]),
            out[:, None] * np.cos(angle),
        ],
        -1,
    )
    run = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(profile, axis=0), axis=1))])
    u, v = np.meshgrid(angle / (2.0 * math.pi), run / run[-1], indexing="xy")
    faces = grid_faces(len(profile) - 1, columns)[:, ::-1]
    return points.reshape(-1, 3), normals.reshape(-1, 3), np.stack([u, v], -1).reshape(-1, 2), faces


def smooth_profile(knots: list[tuple[float, float]], count: int) -> Array:
    """A Catmull-Rom curve through the knots."""
    points = np.array(knots)
    points = np.concatenate([2 * points[:1] - points[1:2], points, 2 * points[-1:] - points[-2:-1]])
    curve = []
    for t in np.linspace(0, len(knots) - 1 - 1e-9, count):
        i, s = int(t), t - int(t)
        p0, p1, p2, p3 = points[i : i + 4]
        curve.append(
            0.5
            * (
                2 * p1
                + (p2 - p0) * s
                + (2 * p0 - 5 * p1 + 4 * p2 - p3) * s**2
                + (3 * p1 - p0 - 3 * p2 + p3) * s**3
            )
        )
    return np.array(curve)


def drum_profile(radius: float, height: float, bevel: float) -> Array:
    """A drum from the middle of its top to the ground, with a rounded edge."""
    turn = np.linspace(0.0, math.pi / 2, 9)
    edge = np.stack([radius - bevel + bevel * np.sin(turn), height - bevel + bevel * np.cos(turn)], -1)
    top = [[r, height] for r in (0.0, 0.5 * (radius - bevel), 0.98 * (radius - bevel))]
    side = [[radius, h] for h in (0.96 * (height - bevel), 0.0)]
    return np.concatenate([top, edge, side])[::-1]


def block(bevel: float = 0.09, steps: int = 7) -> tuple[Array, Array, Array, Array]:
    """A cube of side 1 with rounded edges."""
    line = np.concatenate([np.linspace(-0.5, -0.5 + bevel, steps), np.linspace(0.5 - bevel, 0.5, steps)])
    a, b = np.meshgrid(line, line, indexing="ij")
    count = len(line) - 1
    points: list[Array] = []
    uvs: list[Array] = []
    faces: list[Array] = []
    for axis in range(3):
        for sign in (-1.0, 1.0):
            flat = np.zeros((*a.shape, 3))
            flat[..., axis], flat[..., (axis + 1) % 3], flat[..., (axis + 2) % 3] = 0.5 * sign, a, b
            faces.append(grid_faces(count, count)[:, :: (1 if sign > 0 else -1)] + sum(map(len, points)))
            points.append(flat.reshape(-1, 3))
            uvs.append(np.stack([a + 0.5, b + 0.5], -1).reshape(-1, 2))
    cube = np.concatenate(points)
    inner = np.clip(cube, -0.5 + bevel, 0.5 - bevel)
    normals = cube - inner
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-9)
    return inner + bevel * normals, normals, np.concatenate(uvs), np.concatenate(faces)


def terrazzo(size: int = 1024) -> Array:
    """Stone chips in pale cement, tileable: the nearest of many weighted seeds decides."""
    rng = np.random.default_rng(7)
    palette = np.array(
        [[196, 92, 68], [40, 92, 104], [226, 170, 82], [92, 104, 96], [150, 128, 112], [58, 58, 66]], float
    )
    image = np.full((size, size, 3), (222.0, 214.0, 202.0))
    ys, xs = np.mgrid[0:size, 0:size].astype(np.float32) / size
    for _ in range(620):
        cx, cy = rng.random(2)
        reach = 0.006 + 0.022 * rng.random() ** 2.2
        sides = int(rng.integers(4, 7))
        angles = np.sort(rng.random(sides)) * 2 * math.pi
        scale = reach * (0.7 + 0.5 * rng.random(sides))
        dx = (xs - cx + 0.5) % 1.0 - 0.5
        dy = (ys - cy + 0.5) % 1.0 - 0.5
        inside = np.ones_like(xs, dtype=bool)
        for angle, distance in zip(angles, scale, strict=True):
            inside &= dx * math.cos(angle) + dy * math.sin(angle) < distance
        inside &= np.hypot(dx, dy) < 1.6 * reach
        image[inside] = palette[rng.integers(len(palette))] + rng.normal(0, 7)
    speckle = rng.normal(0.0, 3.0, (size, size, 1))
    return np.clip(image + speckle, 0, 255).astype(np.uint8)


def waves(size: int, seed: int, octaves: int = 6) -> Array:
    """Tileable smooth noise around 0, about one high, by adding sine waves of random directions."""
    rng = np.random.default_rng(seed)
    ys, xs = np.mgrid[0:size, 0:size] / size
    field = np.zeros((size, size))
    for octave in range(octaves):
        for _ in range(5):
            kx, ky = rng.integers(-(2**octave), 2**octave + 1, 2)
            field += np.sin(2 * math.pi * (kx * xs + ky * ys) + rng.random() * 6.28) / 2.0**octave / 3.0
    return field


def marble(size: int = 512) -> Array:
    """Dark green-black marble with pale veins where noise crosses zero."""
    vein = np.exp(-((np.abs(waves(size, 11) + 0.3 * waves(size, 12)) * 9.0) ** 0.8))
    cloud = 0.5 + 0.18 * waves(size, 13)
    base = np.array([26.0, 44.0, 42.0])[None, None] * (0.7 + 0.9 * cloud[..., None])
    image = base + vein[..., None] * np.array([190.0, 196.0, 180.0])
    return np.asarray(np.clip(image, 0, 255), dtype=np.uint8)


def glaze(width: int = 1024, height: int = 512) -> Array:
    """Cobalt on ivory: bands of leaves and dots around the vase."""
    v, u = np.mgrid[0:height, 0:width].astype(np.float64)
    u, v = u / width, v / height
    ivory, cobalt, rust = (
        np.array([236.0, 228.0, 210.0]),
        np.array([24.0, 52.0, 124.0]),
        np.array([178.0, 74.0, 48.0]),
    )
    paint = np.zeros((height, width))
    for low, high, count, phase in ((0.20, 0.44, 12, 0.0), (0.40, 0.64, 12, 0.5)):
        s = (v - low) / (high - low)
        inside = (s > 0) & (s < 1)
        across = np.abs(((u * count + phase) % 1.0) - 0.5)
        leaf = inside & (across < 0.34 * np.sin(math.pi * np.clip(s, 0, 1)) ** 0.8)
        rib = inside & (across < 0.022)
        paint = np.maximum(paint, leaf * 1.0 - rib * 1.0)
    for low, high in ((0.11, 0.125), (0.145, 0.18), (0.655, 0.69), (0.705, 0.72), (0.93, 1.0)):
        paint = np.maximum(paint, ((v > low) & (v < high)) * 1.0)
    dots = np.zeros_like(paint)
    for middle, count in ((0.775, 20),):
        across = (((u * count) % 1.0) - 0.5) / count * 2.6
        dots = np.maximum(dots, (np.hypot(across, v - middle) < 0.026) * 1.0)
    image = ivory + paint[..., None] * (cobalt - ivory)
    image = image + dots[..., None] * (rust - image)
    image *= (1.0 + 0.03 * waves(512, 21))[:, np.arange(width) % 512, None]
    return np.asarray(np.clip(image, 0, 255), dtype=np.uint8)


def studio(width: int = 512, height: int = 256) -> Array:
    """Surroundings: a dusk gradient with two soft windows, for reflections and fill light."""
    v, u = np.mgrid[0:height, 0:width].astype(np.float64)
    u, v = (u + 0.5) / width, (v + 0.5) / height
    sky, horizon, ground = (
        np.array([20.0, 34.0, 58.0]),
        np.array([168.0, 128.0, 112.0]),
        np.array([30.0, 36.0, 46.0]),
    )
    up = np.clip((0.5 - v) / 0.5, 0, 1)[..., None] ** 0.55
    image = np.where((v < 0.5)[..., None], horizon + up * (sky - horizon), ground)
    near = np.clip((v - 0.5) / 0.03, 0, 1)[..., None]
    image = np.where((v >= 0.5)[..., None], horizon + near * (ground - horizon), image)
    for middle, span, low, high, colour in (
        (0.16, 0.05, 0.16, 0.34, (255.0, 232.0, 200.0)),
        (0.62, 0.035, 0.12, 0.40, (190.0, 214.0, 255.0)),
    ):
        across = np.abs(((u - middle + 0.5) % 1.0) - 0.5)
        soft = (
            np.clip((span - across) / 0.008, 0, 1)
            * np.clip((v - low) / 0.02, 0, 1)
            * np.clip((high - v) / 0.02, 0, 1)
        )
        image = image + soft[..., None] * (np.array(colour) - image)
    return np.asarray(np.clip(image, 0, 255), dtype=np.uint8)


MARBLES = [
    (1.95, 0.55, 0.20, "coral"), (1.48, 1.52, 0.15, "chrome"), (0.62, 1.98, 0.19, "saffron"),
    (-0.15, 1.62, 0.12, "ivory"), (-2.35, 0.62, 0.17, "chrome"), (-0.92, -1.98, 0.20, "coral"),
    (0.42, -2.20, 0.14, "ivory"), (2.28, -0.55, 0.13, "ivory"), (-2.28, -0.42, 0.13, "saffron"),
    (1.02, -1.86, 0.17, "teal"), (-1.70, 1.92, 0.13, "teal"),
]  # fmt: skip
STAGE = 0.18


def scene_xml() -> str:
    """The scene, in units of about 10 cm, y up."""
    marbles = "\n".join(
        f'  <shape type="sphere"><point name="center" x="{x}" y="{STAGE + r}" z="{z}"/>'
        f'<float name="radius" value="{r}"/><ref id="{kind}"/></shape>'
        for x, z, r, kind in MARBLES
    )
    return (HERE / "scene.template.xml").read_text().replace("<!-- MARBLES -->", marbles.strip())


def main() -> None:
    """Write meshes, textures and ``scene.xml`` beside this file."""
    meshes, textures = HERE / "meshes", HERE / "textures"
    meshes.mkdir(exist_ok=True)
    textures.mkdir(exist_ok=True)
    write_ply(meshes / "knot.ply", *knot())
    write_ply(meshes / "stage.ply", *lathe(drum_profile(3.1, STAGE, 0.05), 160))
    points, normals, _, faces = lathe(np.array([[2.97, 0.0], [1.5, 0.0], [0.0, 0.0]]), 160)
    write_ply(meshes / "terrazzo.ply", points, normals, points[:, [0, 2]] / 3.4 + 0.5, faces)
    write_ply(meshes / "plinth.ply", *lathe(drum_profile(0.82, 0.62, 0.06), 96))
    vase = smooth_profile(
        [(0.0, 0.0), (0.30, 0.0), (0.36, 0.04), (0.62, 0.55), (0.60, 1.0), (0.30, 1.45), (0.22, 1.70),
         (0.25, 1.86), (0.36, 1.98), (0.34, 2.0), (0.22, 1.86), (0.18, 1.6)], 110,
    )  # fmt: skip
    vase[:, 0] = np.maximum(vase[:, 0], 0.0)
    vase[:, 1] = np.maximum(vase[:, 1], 0.0)
    write_ply(meshes / "vase.ply", *lathe(vase, 96))
    write_ply(meshes / "block.ply", *block())
    for name, image in (
        ("terrazzo", terrazzo()), ("marble", marble()), ("glaze", glaze()), ("studio", studio()),
    ):  # fmt: skip
        Image.fromarray(image).save(textures / f"{name}.png", optimize=True)
    (HERE / "scene.xml").write_text(scene_xml())


if __name__ == "__main__":
    main()
