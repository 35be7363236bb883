"""Scenes that name files outside the job's assets, in every way a scene file can."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from farm.errors import EscapedPath, PermanentFailure
from jobs.render.scene_paths import check_scene


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Assets of a job, beside a secret."""
    (tmp_path / "secret").write_text("s3cret")
    assets = tmp_path / "job" / "assets"
    (assets / "scene" / "textures").mkdir(parents=True)
    (assets / "shared").mkdir()
    (assets / "scene" / "textures" / "wood.png").write_bytes(b"png")
    (assets / "shared" / "mesh.ply").write_bytes(b"ply")
    return assets


def check(root: Path, scene: str) -> set[str]:
    return check_scene(root, scene, lambda path: None)


def xml(root: Path, body: str, name: str = "scene/scene.xml") -> str:
    (root / name).write_text(f'<scene version="3.0.0">{body}</scene>')
    return name


def test_files_of_the_job_are_found_beside_the_scene_and_above_it(root: Path) -> None:
    scene = xml(
        root,
        '<texture type="bitmap"><string name="filename" value="textures/wood.png"/></texture>'
        '<shape type="ply"><string name="filename" value="../shared/mesh.ply"/></shape>',
    )
    assert check(root, scene) == {"scene/scene.xml", "scene/textures/wood.png", "shared/mesh.ply"}


@pytest.mark.parametrize(
    "name",
    [
        "../../secret",
        "../../../secret",
        "/etc/passwd",
        "~/secret",
        "C:/secret",
        "C:\\secret",
        "..\\..\\secret",
        "textures/../../../secret",
        "file:///etc/passwd",
        "http://127.0.0.1/x.png",
    ],
)
@pytest.mark.parametrize(
    "body",
    [
        '<texture type="bitmap"><string name="filename" value="{}"/></texture>',
        '<spectrum name="x" filename="{}"/>',
        '<include filename="{}"/>',
        '<path value="{}"/>',
        '<emitter type="envmap"><string name="anything" value="{}"/></emitter>',
        '<default name="p" value="{}"/><shape type="ply"><string name="filename" value="$p"/></shape>',
    ],
)
def test_a_path_out_is_refused_by_name(root: Path, body: str, name: str) -> None:
    scene = xml(root, body.format(name))
    with pytest.raises(EscapedPath) as caught:
        check(root, scene)
    assert "scene/scene.xml" in caught.value.message


def test_an_include_is_followed(root: Path) -> None:
    xml(
        root,
        '<texture type="bitmap"><string name="filename" value="../../secret"/></texture>',
        "scene/part.xml",
    )
    scene = xml(root, '<include filename="part.xml"/>')
    with pytest.raises(EscapedPath, match=r"scene/part\.xml names '\.\./\.\./secret'"):
        check(root, scene)


def test_includes_in_a_circle_end(root: Path) -> None:
    xml(root, '<include filename="scene.xml"/>', "scene/part.xml")
    scene = xml(root, '<include filename="part.xml"/>')
    assert check(root, scene) == {"scene/scene.xml", "scene/part.xml"}


def test_a_link_out_is_refused(root: Path) -> None:
    (root / "scene" / "textures" / "evil.png").symlink_to(root.parents[1] / "secret")
    scene = xml(root, '<texture type="bitmap"><string name="filename" value="textures/evil.png"/></texture>')
    with pytest.raises(EscapedPath, match="a link that leaves"):
        check(root, scene)


def test_a_linked_folder_out_is_refused(root: Path) -> None:
    (root / "scene" / "out").symlink_to(root.parents[1])
    scene = xml(root, '<texture type="bitmap"><string name="filename" value="out/secret"/></texture>')
    with pytest.raises(EscapedPath, match="a link that leaves"):
        check(root, scene)


def test_a_link_that_the_farm_made_is_the_jobs_own(root: Path) -> None:
    stored = root.parents[1] / "store-file"
    stored.write_bytes(b"png")
    (root / "scene" / "textures" / "stored.png").symlink_to(stored)
    scene = xml(
        root, '<texture type="bitmap"><string name="filename" value="textures/stored.png"/></texture>'
    )
    used = check_scene(root, scene, lambda path: root / path if path.endswith("stored.png") else None)
    assert "scene/textures/stored.png" in used


def test_a_missing_file_is_named_with_the_file_that_names_it(root: Path) -> None:
    scene = xml(root, '<texture type="bitmap"><string name="filename" value="textures/gone.png"/></texture>')
    with pytest.raises(
        PermanentFailure, match=r"scene/scene\.xml names scene/textures/gone\.png, which is not"
    ):
        check(root, scene)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<scene version='3.0.0'>", "not well-formed XML: no element found: line 1"),
        ("", "not well-formed"),
        ("\x82\xff", "not well-formed"),
        ("<!DOCTYPE x [<!ENTITY a 'b'>]><scene/>", "document types"),
    ],
)
def test_a_broken_scene_file_is_named(root: Path, text: str, words: str) -> None:
    (root / "scene" / "scene.xml").write_bytes(text.encode("latin-1"))
    with pytest.raises(PermanentFailure, match=words) as caught:
        check(root, "scene/scene.xml")
    assert "scene/scene.xml" in caught.value.message


def test_obj_materials_and_their_maps_are_followed(root: Path) -> None:
    (root / "scene" / "a.obj").write_text("mtllib a.mtl\nv 0 0 0\n")
    (root / "scene" / "a.mtl").write_text("newmtl a\nmap_Kd -bm 0.5 textures/wood.png\n")
    assert check(root, "scene/a.obj") == {"scene/a.obj", "scene/a.mtl", "scene/textures/wood.png"}


@pytest.mark.parametrize(
    ("obj", "mtl"),
    [
        ("mtllib ../../secret\n", ""),
        ("mtllib a.mtl\n", "map_Kd ../../secret\n"),
        ("mtllib a.mtl\n", "bump /etc/passwd"),
    ],
)
def test_obj_that_reads_outside_is_refused(root: Path, obj: str, mtl: str) -> None:
    (root / "scene" / "a.obj").write_text(obj)
    (root / "scene" / "a.mtl").write_text(f"newmtl a\n{mtl}")
    with pytest.raises(EscapedPath):
        check(root, "scene/a.obj")


def glb(path: Path, document: object) -> None:
    body = json.dumps(document).encode()
    body += b" " * (-len(body) % 4)
    path.write_bytes(b"glTF" + struct.pack("<IIII", 2, 20 + len(body), len(body), 0x4E4F534A) + body)


@pytest.mark.parametrize("kind", ["images", "buffers"])
@pytest.mark.parametrize(
    "uri", ["../../secret", "..%2F..%2Fsecret", "/etc/passwd", "https://example.org/x.png"]
)
def test_a_glb_that_reads_outside_is_refused(root: Path, kind: str, uri: str) -> None:
    glb(root / "scene" / "a.glb", {kind: [{"uri": uri}]})
    with pytest.raises(EscapedPath):
        check(root, "scene/a.glb")


@pytest.mark.parametrize("kind", ["buffers", "images"])
def test_a_gltf_brings_its_files_and_reads_none_outside(root: Path, kind: str) -> None:
    scene = root / "scene" / "a.gltf"
    (root / "scene" / "with space.bin").touch()
    scene.write_text(json.dumps({kind: [{"uri": "with%20space.bin"}]}))
    assert check(root, "scene/a.gltf") == {"scene/a.gltf", "scene/with space.bin"}
    scene.write_text(json.dumps({kind: [{"uri": "../../secret"}]}))
    with pytest.raises(EscapedPath, match="secret"):
        check(root, "scene/a.gltf")
    scene.write_text("{")
    with pytest.raises(PermanentFailure, match=r"a\.gltf: its JSON cannot be read"):
        check(root, "scene/a.gltf")


def test_a_glb_with_its_data_inside_is_fine(root: Path) -> None:
    glb(root / "scene" / "a.glb", {"buffers": [{"uri": "data:application/octet-stream;base64,AA=="}, {}]})
    assert check(root, "scene/a.glb") == {"scene/a.glb"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "does not begin"),
        (b"PK\x03\x04" + bytes(40), "does not begin"),
        (b"glTF" + struct.pack("<IIII", 1, 20, 0, 0x4E4F534A), "version 1"),
        (b"glTF" + struct.pack("<IIII", 2, 9999, 100, 0x4E4F534A), "cut short"),
        (b"glTF" + struct.pack("<IIII", 2, 24, 4, 0x4E4F534A) + b"{{{{", "JSON"),
    ],
)
def test_a_broken_glb_is_named(root: Path, data: bytes, words: str) -> None:
    (root / "scene" / "a.glb").write_bytes(data)
    with pytest.raises(PermanentFailure, match=words) as caught:
        check(root, "scene/a.glb")
    assert "a.glb" in caught.value.message
