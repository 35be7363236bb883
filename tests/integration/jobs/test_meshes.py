""".obj, .ply and .glb in the neutral set: seen from the right side, in the right colours, or refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from farm.errors import EscapedPath, PermanentFailure
from jobs.render.mitsuba.meshes import load_shapes
from tests.unit.jobs.local_host import LocalHost

REAL = Path(__file__).resolve().parents[4] / "shared" / "real" / "blend"
MESH: dict[str, Any] = {"resolution": [64, 64], "samples": 16, "variant": "scalar_rgb"}
FRONT = {"type": "orbit", "elevation": 0, "target": [0, 1, 0], "distance": 6, "fov": 40}
OBJ = """mtllib quad.mtl
v -1 0 0
v 1 0 0
v 1 2 0
v -1 2 0
vt 0 0
vt 1 0
vt 1 1
vt 0 1
usemtl paper
f 1/1 2/2 3/3
f 1/1 3/3 4/4
"""


def quarters(path: Path) -> Path:
    """Red and green above, blue and yellow below, as the image is looked at."""
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:16, :16], pixels[:16, 16:] = (230, 20, 20), (20, 230, 20)
    pixels[16:, :16], pixels[16:, 16:] = (20, 20, 230), (230, 230, 20)
    Image.fromarray(pixels).save(path)
    return path


def picture(host: LocalHost, scene: str, **fields: Any) -> Any:
    host.run_job("render", {"scene": scene, **MESH, **fields})
    return np.asarray(Image.open(host.published["render", 1].files["beauty.png"])).astype(int)


def names(pixel: Any) -> str:
    """The colour of a pixel in one word."""
    red, green, blue = (int(v) for v in pixel[:3])
    top = max(red, green, blue)
    low = [v < 0.7 * top for v in (red, green, blue)]
    return {
        (False, True, True): "red",
        (True, False, True): "green",
        (True, True, False): "blue",
        (False, False, True): "yellow",
    }.get((low[0], low[1], low[2]), "grey")


def seen(pixels: Any) -> list[str]:
    """Colours at the quarters of the quad, which fills the middle of the picture."""
    return [names(pixels[y, x]) for y, x in ((22, 22), (22, 42), (42, 22), (42, 42))]


@pytest.fixture
def quad(tmp_path: Path) -> dict[str, Path]:
    """A textured quad as .obj with its material."""
    quarters(tmp_path / "paper.png")
    (tmp_path / "quad.obj").write_text(OBJ)
    (tmp_path / "quad.mtl").write_text("newmtl paper\nKd 1 1 1\nmap_Kd paper.png\n")
    return {name: tmp_path / name for name in ("quad.obj", "quad.mtl", "paper.png")}


def test_an_obj_shows_its_texture_the_right_way_up(
    quad: dict[str, Path], make_host: Callable[..., LocalHost]
) -> None:
    pytest.importorskip("trimesh", reason="needs trimesh")
    assert seen(picture(make_host(quad), "quad.obj", camera=FRONT)) == ["red", "green", "blue", "yellow"]


def test_a_glb_shows_its_texture_the_right_way_up(
    tmp_path: Path, make_host: Callable[..., LocalHost]
) -> None:
    trimesh = pytest.importorskip("trimesh", reason="needs trimesh")
    material = trimesh.visual.material.PBRMaterial(
        baseColorTexture=Image.open(quarters(tmp_path / "paper.png")), metallicFactor=0.0, roughnessFactor=0.8
    )
    mesh = trimesh.Trimesh(
        [[-1, 0, 0], [1, 0, 0], [1, 2, 0], [-1, 2, 0]],
        [[0, 1, 2], [0, 2, 3]],
        process=False,
        visual=trimesh.visual.TextureVisuals(uv=[[0, 0], [1, 0], [1, 1], [0, 1]], material=material),
    )
    mesh.export(tmp_path / "quad.glb")
    host = make_host({"quad.glb": tmp_path / "quad.glb"})
    assert seen(picture(host, "quad.glb", camera=FRONT)) == ["red", "green", "blue", "yellow"]


def test_a_ply_shows_the_colours_of_its_vertices_and_a_plain_one_is_grey(
    tmp_path: Path, make_host: Callable[..., LocalHost]
) -> None:
    head = "ply\nformat ascii 1.0\nelement vertex 4\nproperty float x\nproperty float y\nproperty float z\n"
    colour = "property float r\nproperty float g\nproperty float b\n"
    tail = "element face 2\nproperty list uchar int vertex_indices\nend_header\n"
    corners = ["-1 0 0", "1 0 0", "1 2 0", "-1 2 0"]
    faces = "3 0 1 2\n3 0 2 3\n"
    red = "\n".join(f"{c} 0.8 0.02 0.02" for c in corners) + "\n"
    (tmp_path / "red.ply").write_text(head + colour + tail + red + faces)
    (tmp_path / "grey.ply").write_text(head + tail + "\n".join(corners) + "\n" + faces)
    for name in ("red", "grey"):
        host = make_host({f"{name}.ply": tmp_path / f"{name}.ply"})
        assert set(seen(picture(host, f"{name}.ply", camera=FRONT))) == {name}


def test_a_real_glb_is_seen_whole_by_the_default_turntable(make_host: Callable[..., LocalHost]) -> None:
    pytest.importorskip("trimesh", reason="needs trimesh")
    if not (REAL / "Box.glb").exists():
        pytest.skip("the real files are not on this machine")
    host = make_host({"Box.glb": REAL / "Box.glb"})
    pixels = picture(host, "Box.glb", frames="1-2", denoise="none")
    assert names(pixels[32, 32]) == "red"
    edges = [pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]
    assert all(names(pixel) == "grey" for edge in edges for pixel in edge)
    assert host.results["render"][0]["cameras"][0]["intrinsics"]["w"] == 64


def test_a_transparent_mesh_stands_on_nothing(
    quad: dict[str, Path], make_host: Callable[..., LocalHost]
) -> None:
    pytest.importorskip("trimesh", reason="needs trimesh")
    pixels = picture(make_host(quad), "quad.obj", camera=FRONT, transparent=True)
    assert pixels[32, 32, 3] == 255
    assert pixels[0, 0, 3] == pixels[-1, -1, 3] == 0


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.obj", b"v 0 0 0\n"),
        ("a.obj", b"not a mesh"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex 1\n"),
        ("a.ply", b"\x82\xff\x00"),
        ("a.glb", b"glTF" + struct.pack("<IIII", 2, 24, 4, 0x4E4F534A) + b"{}  "),
    ],
)
def test_a_file_without_triangles_is_refused_by_name(
    tmp_path: Path, make_host: Callable[..., LocalHost], name: str, data: bytes
) -> None:
    if not name.endswith(".ply"):
        pytest.importorskip("trimesh", reason="needs trimesh")
    (tmp_path / name).write_bytes(data)
    with pytest.raises(PermanentFailure, match=rf"{name[0]}\.{name[2:]}"):
        make_host({name: tmp_path / name}).run_job("render", {"scene": name, **MESH})


def test_a_face_that_names_a_point_which_is_not_there_is_said_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "oob.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 9\n")
    with pytest.raises(PermanentFailure, match=r"oob\.obj .*a face names a point.*export it anew"):
        load_shapes(tmp_path / "oob.obj", tmp_path)


def test_a_material_that_reads_a_secret_never_reaches_the_reader(
    quad: dict[str, Path], make_host: Callable[..., LocalHost]
) -> None:
    quad["quad.mtl"].write_text("newmtl paper\nmap_Kd ../../secret\n")
    with pytest.raises(EscapedPath, match=r"quad\.mtl names"):
        make_host(quad).run_job("render", {"scene": "quad.obj", **MESH})


def test_denoising_removes_noise_and_keeps_the_mean(
    scene: dict[str, Path], make_host: Callable[..., LocalHost]
) -> None:
    pytest.importorskip("mitsuba_oidn", reason="needs mitsuba-oidn")
    spec = {"scene": "scene.xml", "resolution": [96, 72], "variant": "scalar_rgb"}
    hosts = [make_host(scene) for _ in range(3)]
    for host, fields in zip(
        hosts, ({"samples": 512}, {"samples": 2}, {"samples": 2, "denoise": "oidn"}), strict=True
    ):
        host.run_job("render", {**spec, **fields})
    files = [host.published["render", 1].files["beauty.png"] for host in hosts]
    truth, noisy, clean = (np.asarray(Image.open(f)).astype(float) for f in files)
    assert np.abs(clean - truth).mean() < 0.6 * np.abs(noisy - truth).mean()
    assert clean.mean() == pytest.approx(truth.mean(), rel=0.03)
