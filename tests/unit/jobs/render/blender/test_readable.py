"""Which files may be sent at the word of a .blend: those that Blender reads, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobs.render.blender.packing import Gate
from jobs.render.blender.readable import is_readable


@pytest.mark.parametrize(
    ("name", "content", "anywhere", "in_cache"),
    [
        ("wood.PNG", b"", True, False),
        ("lamp.ies", b"", True, False),
        ("lib.blend", b"", True, False),
        ("smoke_0001.vdb", b"", True, True),
        ("fluid_mesh_0001.bobj.gz", b"", True, True),
        ("wave_0001.exr", b"", True, True),
        ("no_suffix", b"\x89PNG\r\n\x1a\n....", True, False),
        ("picture", b"RIFF\0\0\0\0WEBPVP8 ", True, False),
        ("bake/meta/0001.json", b"{}", False, True),
        ("bake/blobs/0001_5.blob", b"", False, True),
        ("keys/meta/secrets.json", b"{}", False, False),
        ("settings.json", b"{}", False, False),
        ("passwd", b"root:x:0:0", False, False),
        (".env", b"KEY=1", False, False),
        ("id_rsa", b"-----BEGIN", False, False),
        ("notes.gz", b"\x1f\x8b", False, False),
        ("empty", b"", False, False),
    ],
)
def test_a_file_is_known_by_its_name_or_its_beginning(
    tmp_path: Path, name: str, content: bytes, anywhere: bool, in_cache: bool
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    assert is_readable(path) is anywhere
    assert is_readable(path, in_cache=True) is in_cache


def test_only_regular_files_are_sent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "device.png").symlink_to("/dev/zero")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nothing")
    assert [path.name for path in tmp_path.iterdir() if is_readable(path)] == []


def test_the_gate_counts_a_link_where_it_leads_and_names_it_where_it_lies(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "mine.png").write_bytes(b"")
    (project / "tex.png").symlink_to(tmp_path / "mine.png")
    (project / "tex").symlink_to(tmp_path)
    gate = Gate(project, anywhere=False)
    assert not gate.takes(project / "tex.png")
    assert not gate.takes(project / "tex" / "mine.png")
    assert not gate.takes(project / ".." / "mine.png")
    assert gate.outside == {str(project / name) for name in ("tex.png", "tex/mine.png", "../mine.png")}
    assert Gate(project, anywhere=True).takes(project / "tex.png")
