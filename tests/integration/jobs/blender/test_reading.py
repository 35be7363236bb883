"""What a .blend of anybody does to its reader, on a node and at ``farm submit``: nothing that lasts."""

from __future__ import annotations

import gzip
import random
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from blender_asset_tracer import blendfile

from farm.errors import EscapedPath, InvalidInput, PermanentFailure
from jobs.render.blender import collect, scene_file
from jobs.render.driver import ROOT_FOLDER
from tests.integration.jobs.blender.conftest import Job

MakeJob = Callable[..., Job]


@pytest.fixture
def refused(job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str]:
    """Has a file refused by a node and by ``farm submit``, which leave nothing; the words of both."""
    scratch = tmp_path / "temporary"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))

    def refuse(scene: Path) -> str:
        one = job(scene)
        with pytest.raises(PermanentFailure) as on_node:
            one.preflight()
        assert not list(one.host.scratch.parent.glob(f"{ROOT_FOLDER}*"))
        with pytest.raises(InvalidInput) as on_submit, collect.collect(scene):
            pass
        assert not list(scratch.iterdir())
        words = on_node.value.message
        # the node's folders are nobody's business
        assert "/" not in words.replace("damaged, or", "")
        assert words.removeprefix(f"{scene.name} ").partition("within")[0] in on_submit.value.message
        return words

    return refuse


def test_a_modifier_of_geometry_nodes_is_no_fault(job: MakeJob, made: Path) -> None:
    # its `bakes` point nowhere
    report = job(made / "geometry_nodes.blend").preflight()
    assert report["findings"] == []
    with collect.collect(made / "geometry_nodes.blend") as found:
        assert (list(found.files), found.unread) == (["geometry_nodes.blend"], [])


def test_what_cannot_be_followed_is_said_and_the_rest_is_done(
    job: MakeJob, made: Path, tmp_path: Path, confined: str
) -> None:
    (tmp_path / "tex").mkdir()
    (tmp_path / "tex" / "none.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    scene = tmp_path / "odd.blend"
    scene.write_bytes((made / "missing_image.blend").read_bytes())
    with blendfile.BlendFile(scene) as file:
        cube = next(block for block in file.find_blocks_from_code(b"OB") if block.id_name == b"OBCube")
        place = cube.file_offset + offset_of(cube, b"adt")
        (paint,) = file.find_blocks_from_code(b"MA")
    with scene.open("r+b") as raw:
        # the cube's animation becomes a material, which has no action
        raw.seek(place)
        raw.write(paint.addr_old.to_bytes(8, "little"))
    with collect.collect(scene) as found:
        assert list(found.files) == ["odd.blend", "tex/none.png"]
        assert [unread.partition(" ")[0] for unread in found.unread] == ["Cube"]
    one = job(scene, blender={"allow_missing": True})
    if confined == "plain":
        # nothing but the paths that were looked at would keep Blender inside
        with pytest.raises(EscapedPath, match=r"whose paths cannot be checked \(Cube "):
            one.preflight()
        return
    findings = one.preflight()["findings"]
    (finding,) = [finding for finding in findings if finding["code"] == "unread"]
    assert finding["severity"] == "warning"
    assert finding["message"].startswith("Cube (it is damaged or cut off (KeyError)) could not be followed")


def test_an_unpacking_without_end_is_ended(
    refused: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (scene_file, collect):
        monkeypatch.setattr(module, "UNPACKED_LIMIT", 2**20)
    scene = tmp_path / "bomb.blend"
    header = b"BLENDER-v405" + b"DATA" + struct.pack("<iQii", 2**30, 1, 0, 1)
    with gzip.open(scene, "wb") as file:
        file.write(header + bytes(2**23))
    assert "unpack to more than the limit of 1.00 MiB" in refused(scene)
    assert f"its {scene.stat().st_size / 2**20:.2f} MiB" in refused(scene)


def test_a_list_that_leads_back_into_itself_is_seen(
    refused: Callable[[Path], str], made: Path, tmp_path: Path
) -> None:
    scene = tmp_path / "cycle.blend"
    scene.write_bytes((made / "geometry_nodes.blend").read_bytes())
    modifier = modifier_of(scene)
    with scene.open("r+b") as file:
        # `next` is the first field
        file.seek(modifier.file_offset)
        file.write(modifier.addr_old.to_bytes(8, "little"))
    assert "a list of NodesModifierData in it leads back to its own beginning" in refused(scene)


def test_time_and_memory_of_the_reader_are_bounded(
    refused: Callable[[Path], str], made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for module in (scene_file, collect):
            patch.setattr(module, "TIME_LIMIT_S", 0.001)
        assert "cannot be looked through within 0.001 s" in refused(made / "plain.blend")
    for module in (scene_file, collect):
        monkeypatch.setattr(module, "MEMORY_LIMIT", 64 * 2**20)
    scene = tmp_path / "blocks.blend"
    block = b"DATA" + struct.pack("<iQii", 0, 1, 0, 1)
    scene.write_bytes(b"BLENDER-v405" + block * 400_000)
    assert "takes more memory than it may" in refused(scene)


@pytest.mark.parametrize("how", ["cut", "cut_packed", "other", "empty", "scrambled"])
def test_every_fault_of_a_file_is_one_clear_error(
    refused: Callable[[Path], str], made: Path, tmp_path: Path, how: str
) -> None:
    sound = (made / "plain.blend").read_bytes()
    packed = gzip.compress(sound, 1)
    scrambled = bytearray(sound)
    chance = random.Random(3)
    for _ in range(2000):
        scrambled[chance.randrange(1000, len(scrambled))] = chance.randrange(256)
    content, words = {
        "cut": (sound[: len(sound) // 2], "it is damaged or cut off"),
        "cut_packed": (packed[: len(packed) // 2], "it is damaged or cut off"),
        "other": (b"hello, I am text\n" * 100, "its beginning is not that of a .blend file"),
        "empty": (b"", "its beginning is not that of a .blend file"),
        "scrambled": (bytes(scrambled), "it is damaged or cut off"),
    }[how]
    scene = tmp_path / "shot.blend"
    scene.write_bytes(content)
    assert f"shot.blend cannot be read as a .blend file: {words}" in refused(scene)


def modifier_of(scene: Path) -> blendfile.BlendFileBlock:
    """The first modifier of the file's objects."""
    with blendfile.BlendFile(scene) as file:
        for block in file.find_blocks_from_code(b"OB"):
            found = block.get_pointer((b"modifiers", b"first"))
            if found is not None:
                return found
    raise AssertionError("no object of it has a modifier")


def offset_of(block: blendfile.BlendFileBlock, name: bytes) -> int:
    """Where a field lies in its block, in bytes."""
    _, offset = block.dna_type.field_from_path(8, name)
    return int(offset)
