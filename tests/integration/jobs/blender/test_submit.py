"""What ``farm submit shot.blend`` sends: the file and all that it needs, and what it says of the rest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from api.cli.submit import from_source, kind_of
from farm.errors import InvalidInput, NotInstalled
from jobs.render.blender import installation
from jobs.render.shorthand import Gathered
from tests.benchmarks import blender_gpu
from tests.integration.jobs.blender.conftest import REAL, REPOSITORY, Job, run_in_blender

MakeJob = Callable[..., Job]


def gathered(source: Path, root: Path | None = None, **options: Any) -> tuple[str, Gathered]:
    body, files = from_source("render", source, options, root)
    assert isinstance(files, Gathered)
    return body["spec"]["scene"], files


@pytest.fixture
def shot(made: Path, tmp_path: Path) -> Path:
    """A shot in a folder of its own, with the library that it links."""
    for name in ("linked.blend", "lib.blend"):
        shutil.copy(made / name, tmp_path / name)
    return tmp_path / "linked.blend"


@pytest.mark.parametrize("name", ["a.blend", "A.BLEND", "b.gltf", "c.usdz", "d.xml"])
def test_a_scene_file_tells_its_kind(name: str) -> None:
    assert kind_of(Path(name)) == "render"


def test_a_file_that_tells_no_kind_is_refused_with_those_that_do() -> None:
    with pytest.raises(InvalidInput, match=r"'a\.zip' alone does not tell the kind.*\.blend"):
        kind_of(Path("a.zip"))


def test_linked_files_come_along_and_keep_their_places(shot: Path, job: MakeJob) -> None:
    scene, files = gathered(shot)
    assert scene == "linked.blend"
    assert {path: source.name for path, source in files.items()} == {
        "lib.blend": "lib.blend",
        "linked.blend": "linked.blend",
    }
    assert files.notes == []


def test_what_is_not_found_is_said_and_a_climbing_path_stays_in_the_job(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "show" / "shots" / "a"
    folder.mkdir(parents=True)
    shutil.copy(made / "escape.blend", folder / "escape.blend")
    scene, files = gathered(folder / "escape.blend")
    # the file names //../../secret: the job begins two folders up
    assert scene == "shots/a/escape.blend"
    assert list(files) == [scene]
    assert files.notes == [f"not found, and not sent: {tmp_path / 'show' / 'secret'}"]


def test_absolute_paths_are_made_relative_in_a_copy(made: Path, tmp_path: Path, job: MakeJob) -> None:
    Image.new("RGB", (4, 4), (0, 255, 0)).save(made.parent / "secret", "PNG")
    try:
        scene, files = gathered(made / "secret.blend", allow_outside=True)
        (other,) = [path for path in files if path != scene]
        assert "made the absolute paths in secret.blend relative" in files.notes
        one = Job(job(made / "plain.blend").host, {"scene": scene, "frames": "1"})
        one.host.files = dict(files)
        one.host.__post_init__()
        before = (made / "secret.blend").read_bytes()
        one.run()
        picture = np.asarray(Image.open(one.file(1))).astype(int)
        # the cube is green now, as its texture is
        assert (picture[..., 1] > picture[..., 0] + 20).any(), other
        assert (made / "secret.blend").read_bytes() == before
    finally:
        (made.parent / "secret").unlink()


def test_a_root_that_does_not_hold_the_file_is_refused(shot: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(InvalidInput, match="does not lie below --root"):
        gathered(shot, tmp_path / "elsewhere")


def test_a_file_that_is_no_blend_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.blend").write_bytes(b"nonsense" * 100)
    with pytest.raises(InvalidInput, match=r"cannot be read as a \.blend file"):
        gathered(tmp_path / "a.blend")


def test_other_scene_formats_go_through_blender(python: str, tmp_path: Path, job: MakeJob) -> None:
    run_in_blender(python, "export_files.py", str(tmp_path))
    # the .gltf brings its .bin along, the .obj its .mtl
    for name in ("cube.glb", "cube.gltf", "cube.obj", "cube.ply", "cube.usdc"):
        body, files = from_source("render", tmp_path / name, {"frames": "1", "samples": 4})
        scene = body["spec"].pop("scene")
        blender = {"camera": "auto"}
        one = job(
            *[files[path] for path in sorted(files, key=lambda p, s=scene: p != s)],
            **body["spec"], engine="blender", resolution=[48, 36], blender=blender,
        )  # fmt: skip
        one.run()
        picture = np.asarray(Image.open(one.file(1)).convert("L"))
        assert picture.std() > 5, f"{name} shows nothing"


def test_the_gpu_script_refuses_cleanly_where_there_is_no_blender(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if not REAL.is_dir():
        pytest.skip("the real .blend files are not beside the repository")
    monkeypatch.setenv("FARM_BLENDER_HOME", str(tmp_path))
    monkeypatch.setattr(blender_gpu, "nvml", lambda: nullcontext(None))

    def no_python() -> Path:
        raise NotInstalled("the bpy wheel needs Python 3.11")

    monkeypatch.setattr(installation, "find_python", no_python)
    assert blender_gpu.main() == 3
    assert capsys.readouterr().out == "not run: the bpy wheel needs Python 3.11\n"


def test_the_gpu_script_refuses_cleanly_where_there_is_no_gpu() -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has an NVIDIA GPU: run python -m tests.benchmarks.blender_gpu")
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.blender_gpu"],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stdout.startswith("not run: this machine has no NVIDIA GPU")


@pytest.fixture
def climbing(made: Path, tmp_path: Path) -> Path:
    """A shot that names ``//../../secret``."""
    folder = tmp_path / "show" / "shots" / "a"
    folder.mkdir(parents=True)
    return Path(shutil.copy(made / "escape.blend", folder / "escape.blend"))


def test_a_file_outside_the_folder_is_sent_only_when_the_person_says_so(climbing: Path) -> None:
    show = climbing.parents[2]
    Image.new("RGB", (4, 4)).save(show / "secret", "PNG")
    with pytest.raises(InvalidInput) as refusal:
        gathered(climbing)
    assert f"names files outside its folder {climbing.parent}, and nothing was sent:" in str(refusal.value)
    assert f"\n  {show / 'secret'}\n" in str(refusal.value)
    assert f"--root {show}; or send them with --allow-outside" in str(refusal.value)
    expected = {"secret": show / "secret", "shots/a/escape.blend": climbing}
    assert dict(gathered(climbing, allow_outside=True)[1]) == expected
    assert dict(gathered(climbing, show)[1]) == expected


@pytest.mark.parametrize("what", ["text", "pipe", "folder"])
def test_what_blender_would_not_read_is_never_sent(climbing: Path, what: str) -> None:
    secret = climbing.parents[2] / "secret"
    if what == "text":
        secret.write_text("root:x:0:0:root:/root:/bin/bash\n")
    elif what == "pipe":
        os.mkfifo(secret)
    else:
        secret.mkdir()
    for files in (gathered(climbing, allow_outside=True)[1], gathered(climbing, secret.parent)[1]):
        assert list(files) == ["shots/a/escape.blend"]
        (note,) = files.notes
        assert note.startswith(f"left out: {secret} is no image, film, sound, font, cache or scene file")


def test_a_link_lies_where_it_leads(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shot"
    (folder / "tex").mkdir(parents=True)
    shutil.copy(made / "missing_image.blend", folder)
    Image.new("RGB", (4, 4)).save(tmp_path / "mine.png")
    (folder / "tex" / "none.png").symlink_to(tmp_path / "mine.png")
    with pytest.raises(InvalidInput, match=r"tex/none\.png"):
        gathered(folder / "missing_image.blend")


def test_allowing_files_outside_is_for_blend_files(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text("<scene/>")
    with pytest.raises(InvalidInput, match=r"--allow-outside is for \.blend files"):
        gathered(tmp_path / "a.xml", allow_outside=True)
