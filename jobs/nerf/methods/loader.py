"""Which class trains which method and form, and what its checkpoint must say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from farm.errors import DeviceUnavailable, NotInstalled, PermanentFailure
from jobs.nerf.methods.base import Field, Options
from jobs.nerf.scene import Scene
from jobs.nerf.spec import Spec
from jobs.pacing import own_pace

Tensor = torch.Tensor
MARK: Final = "stillframe nerf checkpoint 1"


def device_of(spec: Spec) -> torch.device:
    """The device that the job asks for. Raises :class:`DeviceUnavailable` where it is not there."""
    if spec.device == "cuda":
        if not torch.cuda.is_available():
            raise DeviceUnavailable(
                "device cuda: this slot sees no GPU that torch can use; set device: cpu, or run it on a "
                "GPU node"
            )
        return torch.device("cuda")
    return torch.device("cpu")


def options_of(spec: Spec) -> Options:
    """The method's own settings, with what was left out filled in by form."""
    train, form = spec.train, spec.chosen_form
    degree = train.sh_degree if train.sh_degree is not None else (3 if form == "gsplat" else 1)
    cap = train.cap or (1_000_000 if form == "gsplat" else 3_000)
    return Options(train.resolution, train.samples, degree, train.smoothness, cap, train.hash_log2, spec.seed)


def create(form: str, options: Options, scene: Scene, device: torch.device) -> Field:
    """A fresh field. Raises :class:`NotInstalled` or :class:`DeviceUnavailable` for what cannot run here."""
    if form == "dense":
        from jobs.nerf.methods.dense import DenseGrid

        return DenseGrid(options, scene.bounded, scene.extent, device)
    if form == "hash":
        from jobs.nerf.methods.hash import HashGrid

        return HashGrid(options, scene.bounded, scene.extent, device)
    if form == "torch":
        from jobs.nerf.methods.splat import Splats

        return Splats(options, scene.bounded, scene.extent, device)
    if form == "gsplat":
        from jobs.nerf.methods.gsplat import CudaSplats

        return CudaSplats(options, scene.bounded, scene.extent, device)
    raise NotInstalled(f"there is no form {form!r}")


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """One safetensors file: no code runs when it is read."""
    import json

    from safetensors.torch import save_file

    pace = own_pace()
    kept = {name: pace.taken(tensor.detach().contiguous(), "cpu") for name, tensor in tensors.items()}
    save_file(kept, str(path), metadata={"mark": MARK, "facts": json.dumps(dict(facts), sort_keys=True)})


def read_checkpoint(path: Path, form: str, version: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts. Raises :class:`PermanentFailure` for another method's, form's or version's file."""
    import json

    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            about = file.metadata() or {}
            if about.get("mark") != MARK:
                raise PermanentFailure(
                    f"the checkpoint is none of kind nerf (it says {about.get('mark', 'nothing')!r}); "
                    f"submit the "
                    "job again, or retry its step train from the beginning"
                )
            facts: dict[str, Any] = json.loads(about["facts"])
            found = (facts.get("form"), facts.get("version"))
            if found != (form, version):
                raise PermanentFailure(
                    f"the checkpoint is of form {found[0]!r}, version {found[1]}, but this job trains form "
                    f"{form!r}, version {version}; submit the job again, or set form: {found[0]}"
                )
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise PermanentFailure(f"the checkpoint cannot be read ({error}); retry the step train") from None
