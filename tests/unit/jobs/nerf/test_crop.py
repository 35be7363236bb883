"""The crop box: what is refused, and what is kept."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from farm.errors import PermanentFailure
from jobs.nerf.exports.crop import check_seen, crop_mesh, inside, views_of
from jobs.nerf.exports.write import export
from jobs.nerf.scene import View
from jobs.nerf.spec import Spec

BOX = ((-1.0, -1.0, -1.0), (1.0, 1.0, 1.0))
LOOK = np.eye(4)
LOOK[2, 3] = 4.0
# four units up z, looking down it; at depth 4 the picture reaches 2 to each side (50 / 100 * 4)
VIEW = View("a", 100, 100, 100.0, 100.0, 50.0, 50.0, LOOK)


def test_faces_of_the_box_belong_to_it() -> None:
    places = np.array([[0, 0, 0], [1, 1, 1], [0, 0, 1.01], [-1.01, 0, 0]])
    assert inside(places, BOX, "it").tolist() == [True, True, False, False]


def test_an_empty_crop_is_refused() -> None:
    with pytest.raises(PermanentFailure, match="crop: none"):
        inside(np.full((3, 3), 5.0), BOX, "the points")


def test_a_mesh_keeps_whole_faces_and_only_their_vertices() -> None:
    vertices = np.array([[9, 0, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0]], dtype=np.float32)
    places, faces, colours = crop_mesh(vertices, np.array([[0, 1, 2], [1, 2, 3]]), np.arange(4), BOX)
    assert places.tolist() == vertices[1:].tolist()
    assert faces.tolist() == [[0, 1, 2]]
    assert colours.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "box",
    [[[0, 0, 0], [1, 0, 1]], [[2, 0, 0], [1, 1, 1]], [[0, 0, 0], [1, 1, float("inf")]], [[0, 0], [1, 1]]],
)
def test_a_box_without_inside_is_refused(box: object) -> None:
    with pytest.raises(ValidationError, match="crop"):
        Spec.model_validate({"source": "photos", "crop": box})


def test_none_is_the_default() -> None:
    assert Spec.model_validate({"source": "photos"}).crop == "none"


def test_exported_splats_are_cut_and_the_facts_say_so(tmp_path: Path) -> None:
    means = torch.tensor([[0.0, 0, 0], [5, 0, 0], [0.5, 0.5, 0.5]])
    state = {
        "means": means, "scales": torch.zeros(3, 3), "quats": torch.eye(4)[:3], "opacities": torch.ones(3),
        "sh0": torch.zeros(3, 1, 3), "shN": torch.zeros(3, 0, 3),
    }  # fmt: skip
    held: Any = SimpleNamespace(
        field=SimpleNamespace(state=lambda: state), scene=SimpleNamespace(world=np.eye(4), views=(VIEW,))
    )
    host: Any = MagicMock(scratch=tmp_path)
    spec = Spec.model_validate(
        {"source": "photos", "method": "splat", "exports": ["ply", "points"], "crop": BOX}
    )
    splats, points = export(spec, held, host)
    assert (splats[3]["gaussians"], points[3]["points"]) == (2, 2)
    assert splats[3]["crop"] == points[3]["crop"] == BOX
    assert b"element vertex 2\n" in splats[1].read_bytes()
    assert b"comment crop [[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]]\n" in splats[1].read_bytes()


def test_a_place_is_seen_within_the_picture_and_before_the_camera() -> None:
    places = np.array([[1.9, 0, 0], [2.1, 0, 0], [0, -1.9, 0], [0, 0, 5.0]])
    assert views_of(places, [VIEW, VIEW]).tolist() == [2, 0, 2, 0]


def test_a_box_behind_every_camera_is_refused() -> None:
    check_seen(BOX, [VIEW])
    with pytest.raises(PermanentFailure, match="no camera sees into it"):
        check_seen(((-1.0, -1.0, 5.0), (1.0, 1.0, 6.0)), [VIEW])
