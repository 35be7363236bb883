"""A mesh of a field: marching cubes through its density, coloured at the vertices, as .glb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from farm.errors import PermanentFailure
from jobs.nerf.methods.base import Field

LEVEL_OPACITY: Final = 0.5
"""Where light over two cells is halved, there is the surface."""
TO_GLTF: Final = np.array([[1.0, 0, 0, 0], [0, 0, 1.0, 0], [0, -1.0, 0, 0], [0, 0, 0, 1.0]])
"""z up to glTF's y up."""


def surface(field: Field, resolution: int, check: Callable[[], None]) -> tuple[Any, Any, Any]:
    """Vertices (n, 3) in normalised coordinates, faces (m, 3), colours (n, 3) 0 to 255.

    Raises :class:`PermanentFailure` where nothing is dense enough.
    """
    import skimage.measure

    measure: Any = skimage.measure

    reach = field.extent if field.bounded else 1.0
    line = torch.linspace(-reach, reach, resolution, device=field.device)
    slabs = []
    with torch.no_grad():
        for z in line:
            check()
            y, x = torch.meshgrid(line, line, indexing="ij")
            points = torch.stack([x, y, z.expand_as(x)], -1).view(-1, 3)
            slabs.append(field.density(points).view(resolution, resolution).cpu())
    volume = torch.stack(slabs).numpy()
    # the cube's faces are closed, so that the mesh is
    volume[[0, -1]] = volume[:, [0, -1]] = 0.0
    volume[:, :, [0, -1]] = 0.0
    cell = 2.0 * reach / (resolution - 1)
    level = -np.log(1.0 - LEVEL_OPACITY) / (2.0 * cell)
    if not volume.max() > level:
        raise PermanentFailure(
            f"export mesh: the field is nowhere dense (at most {volume.max():.3g}, a surface has "
            f"{level:.3g}); train it longer"
        )
    vertices, faces, _, _ = measure.marching_cubes(volume, level)
    places = (vertices[:, ::-1] * cell - reach).astype(np.float32)
    with torch.no_grad():
        colours = field.albedo(torch.from_numpy(places.copy()).to(field.device)).clamp(0, 1).cpu().numpy()
    return places, faces, (colours * 255 + 0.5).astype(np.uint8)


def to_glb(vertices: Any, faces: Any, colours: Any, extras: dict[str, Any]) -> bytes:
    """A binary glTF with vertex colours, y up; ``extras`` stand beside the scene."""
    import trimesh

    module: Any = trimesh
    alpha = np.full((len(colours), 1), 255, np.uint8)
    mesh = module.Trimesh(
        vertices @ TO_GLTF[:3, :3].T, faces, vertex_colors=np.hstack([colours, alpha]), process=False
    )
    scene = module.Scene(mesh, metadata={"extras": extras})
    found: bytes = scene.export(file_type="glb")
    return found
