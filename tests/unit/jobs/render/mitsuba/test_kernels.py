"""Compiled kernels: a child sees a copy, and only plain files of Dr.Jit's naming are taken over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobs.render.mitsuba import kernels
from jobs.render.mitsuba.kernels import Kernels, sweep

SCENE = "a" * 64
NAME = f"{'0' * 31}1.llvm.v6.bin"
OTHER = f"{'0' * 31}2.cuda.v6.bin"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The output folder of a child."""
    folder = tmp_path / "output"
    folder.mkdir()
    return folder


def test_the_next_child_of_a_scene_finds_what_the_first_one_compiled(tmp_path: Path, output: Path) -> None:
    first = Kernels(tmp_path / "kernels", SCENE)
    first.lay_out(output)
    (output / "kernels" / NAME).write_bytes(b"machine code")
    assert first.take_over(output) == 1
    assert first.take_over(output) == 0, "nothing new"

    later = tmp_path / "later"
    later.mkdir()
    second = Kernels(tmp_path / "kernels", SCENE)
    second.lay_out(later)
    assert (later / "kernels" / NAME).read_bytes() == b"machine code"
    (later / "kernels" / NAME).write_bytes(b"something else")
    assert second.take_over(later) == 0
    assert (tmp_path / "kernels" / SCENE / NAME).read_bytes() == b"machine code", "it was a copy"


def test_another_scene_finds_nothing(tmp_path: Path, output: Path) -> None:
    first = Kernels(tmp_path / "kernels", SCENE)
    first.lay_out(output)
    (output / "kernels" / NAME).write_bytes(b"machine code")
    first.take_over(output)
    later = tmp_path / "later"
    later.mkdir()
    Kernels(tmp_path / "kernels", "b" * 64).lay_out(later)
    assert list((later / "kernels").iterdir()) == []


@pytest.mark.parametrize("key", [None, "", "../../x", "A" * 64])
def test_without_a_scenes_key_nothing_is_kept(tmp_path: Path, output: Path, key: str | None) -> None:
    nothing = Kernels(tmp_path / "kernels", key)
    nothing.lay_out(output)
    (output / "kernels" / NAME).write_bytes(b"machine code")
    assert nothing.take_over(output) == 0
    assert not (tmp_path / "kernels").exists()


def test_links_pipes_second_names_and_strange_names_are_left(tmp_path: Path, output: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    cache = Kernels(tmp_path / "kernels", SCENE)
    cache.lay_out(output)
    folder = output / "kernels"
    (folder / NAME).symlink_to(secret)
    os.link(secret, folder / OTHER)
    os.mkfifo(folder / f"{'0' * 31}3.llvm.v6.bin")
    (folder / f"{'0' * 31}4.llvm.v6.bin").mkdir()
    (folder / f"{'0' * 31}5.llvm.v6.bin").write_bytes(b"")
    (folder / "sweep.stamp").write_bytes(b"x")
    assert cache.take_over(output) == 0


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path, output: Path) -> None:
    cache = Kernels(tmp_path / "kernels", SCENE)
    cache.lay_out(output)
    (output / "kernels").rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / NAME).write_bytes(b"x")
    (output / "kernels").symlink_to(elsewhere)
    assert cache.take_over(output) == 0


def test_files_over_their_bounds_are_left(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "LARGEST_FILE", 10)
    monkeypatch.setattr(kernels, "LARGEST_SCENE", 15)
    cache = Kernels(tmp_path / "kernels", SCENE)
    cache.lay_out(output)
    for index, size in ((1, 11), (2, 10), (3, 10)):
        (output / "kernels" / f"{'0' * 31}{index}.llvm.v6.bin").write_bytes(b"x" * size)
    assert cache.take_over(output) == 1, "one is too large by itself, one beside the other"


def test_scenes_not_used_for_longest_go_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "older", "oldest")):
        (tmp_path / name).mkdir()
        (tmp_path / name / NAME).write_bytes(b"x" * 10)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    sweep(tmp_path, largest=20)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "older"}


def test_a_copy_cut_short_is_no_kernel(tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Kernels(tmp_path / "kernels", SCENE)
    first.lay_out(output)
    (output / "kernels" / NAME).write_bytes(b"machine code")
    first.take_over(output)

    def full_disk(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:4])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jobs.render.mitsuba.kernels.shutil.copyfile", full_disk)
    later = tmp_path / "later"
    later.mkdir()
    Kernels(tmp_path / "kernels", SCENE).lay_out(later)
    assert not (later / "kernels" / NAME).exists()
