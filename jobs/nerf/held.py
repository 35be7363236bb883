"""A trained field with its scene, kept in a slot between tasks."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from jobs.engine import Host
from jobs.nerf.methods.base import Field
from jobs.nerf.methods.loader import create, device_of, options_of, read_checkpoint
from jobs.nerf.packing import MODEL, artifact, unpack_dataset
from jobs.nerf.rendering import Look
from jobs.nerf.scene import Scene
from jobs.nerf.spec import Spec
from jobs.nerf.training import load_field


@dataclass(slots=True)
class Held:
    """``key`` is the SHA-256 of the model that the field was made from."""

    key: str
    scene: Scene
    field: Field
    look: Look


def load_held(held: Held | None, spec: Spec, host: Host) -> Held:
    """The field of this job: the one that is loaded where it is the right one, else read from the store."""
    model = artifact(host, "train", MODEL)
    key = model.path.resolve().name
    if held is not None and held.key == key:
        host.log.write("the field is still loaded")
        return held
    folder = host.scratch / "work" / "dataset"
    folder.mkdir(parents=True)
    scene = unpack_dataset(host, folder)
    shutil.rmtree(folder)
    device = device_of(spec)
    field = create(spec.chosen_form, options_of(spec), scene, device)
    tensors, facts = read_checkpoint(model.path, spec.chosen_form, field.version)
    look = Look.of(spec, scene, device, len(scene.of("train")))
    load_field(field, look, tensors, facts)
    return Held(key, scene, field, look)
