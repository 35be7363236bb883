"""The posed scene and the trained field as artifacts that later steps open again."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Final

from farm.errors import PermanentFailure
from jobs.engine import Host, StoredArtifact
from jobs.nerf.scene import Scene

DATASET: Final = "dataset.zip"
MODEL: Final = "model.safetensors"


def pack(scene: Scene, folder: Path, target: Path) -> Path:
    """``folder`` (pictures) with the scene's ``transforms.json`` as one uncompressed .zip, always alike."""
    scene.save(folder)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            item = zipfile.ZipInfo(path.relative_to(folder).as_posix(), (1980, 1, 1, 0, 0, 0))
            with path.open("rb") as source, archive.open(item, "w", force_zip64=True) as out:
                shutil.copyfileobj(source, out)
    return target


def unpack_dataset(host: Host, folder: Path) -> Scene:
    """The scene of this job's step ``pose``, its files in ``folder``."""
    with zipfile.ZipFile(artifact(host, "pose", DATASET).path) as archive:
        archive.extractall(folder)
    return Scene.load(folder)


def artifact(host: Host, step: str, name: str) -> StoredArtifact:
    """An artifact of another step. Raises :class:`PermanentFailure` where it is not there."""
    for found in host.stored_artifacts(step):
        if found.name == name:
            return found
    raise PermanentFailure(f"step {step!r} has not published {name}; run it again")
