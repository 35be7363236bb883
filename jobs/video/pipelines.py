"""Loading a model folder, and a pipeline of its own for each job over the shared components."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.errors import DeviceUnavailable, NotInstalled, PermanentFailure
from jobs.pacing import own_pace
from jobs.video import schedulers
from jobs.video.models import check_folder
from jobs.video.payload import Generation
from jobs.video.shelf import Shelf

torch: Any = importlib.import_module("torch")


@dataclass(slots=True)
class Loaded:
    """The components of one version, as its warm key says: loaded, checked, quantised, on their device."""

    key: str
    pipeline: Any
    """The folder's own pipeline; jobs never call it, they call a :meth:`view`."""
    device: Any
    nbytes: int
    movable: bool = True
    """Can be kept in host memory and come back."""
    resident: bool = True
    """On its device, rather than kept in host memory."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What others remember about it while it is loaded: the preview's projection, compiled shapes."""
    _shelf: Shelf | None = None

    def view(self, generation: Generation) -> Any:
        """The pipeline class of the job's task over these components, with a scheduler of its own.

        Raises :class:`farm.errors.PermanentFailure` where the components do not make such a pipeline.
        """
        name = generation.model.pipeline_class
        kind: Any = type(self.pipeline)
        if kind.__name__ != name:
            kind = getattr(importlib.import_module("diffusers"), name, None)
            if kind is None:
                raise PermanentFailure(f"/model: this diffusers has no pipeline {name}")
        components = dict(self.pipeline.components)
        components["scheduler"] = schedulers.build(self.pipeline.scheduler, generation)
        given: dict[str, Any] = {}
        for argument, parameter in inspect.signature(kind.__init__).parameters.items():
            if argument == "self":
                continue
            if argument in components:
                given[argument] = components[argument]
            elif argument in self.pipeline.config:
                given[argument] = self.pipeline.config[argument]
            elif parameter.default is inspect.Parameter.empty:
                given[argument] = None
        try:
            view = kind(**given)
        except (ValueError, TypeError, AttributeError) as error:
            raise PermanentFailure(f"/model: its components make no {name}: {error}") from error
        view.set_progress_bar_config(disable=True)
        self._place(view, generation)
        return view

    def move(self, device: Any) -> None:
        """All its weights to a device, or from a GPU to page-locked memory, at the pace that the plan gives.

        Raises :class:`farm.errors.TaskFailed`, and has moved nothing, where no memory can be page-locked.
        """
        parts = [part for part in self.pipeline.components.values() if isinstance(part, torch.nn.Module)]
        if self.device.type == "cuda" and torch.device(device).type == "cpu":
            shelf = Shelf(parts)
            shelf.put()
            self._shelf = shelf
            return
        own_pace().move(parts, device)
        self.pipeline.to(device, silence_dtype_warnings=True)
        if self._shelf is not None:
            self._shelf.close()
            self._shelf = None

    def denoisers(self, generation: Generation) -> list[Any]:
        """The models that denoise, in order of use."""
        parts = self.pipeline.components
        return [part for name in generation.model.facts.denoisers if (part := parts.get(name)) is not None]

    def _place(self, view: Any, generation: Generation) -> None:
        if generation.offload == "model":
            view.enable_model_cpu_offload(device=self.device)
        vae = getattr(view, "vae", None)
        if vae is None:
            return
        switch = "enable_tiling" if generation.vae_tiling else "disable_tiling"
        if hasattr(vae, switch):
            getattr(vae, switch)()
        elif generation.vae_tiling:
            raise PermanentFailure(f"/vae_tiling: {type(vae).__name__} cannot decode in tiles; leave it out")


def device_of(generation: Generation) -> Any:
    """The device that the job asks for. Raises :class:`farm.errors.DeviceUnavailable`; never another one."""
    if generation.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceUnavailable("/device: cuda was asked for, and torch sees no NVIDIA GPU in this slot")
    return torch.device("cuda", 0)


def load(generation: Generation) -> Loaded:
    """Load a version from its folder.

    Safetensors only; the farm's own Python only, unless an administrator has allowed the folder's. Components
    take the job's number type, those that the family keeps in float32 stay there. Raises
    :class:`farm.errors.PermanentFailure` for a folder that is missing, changed or incomplete, and for weights
    that are not finite.
    """
    model, device = generation.model, device_of(generation)
    folder = Path(model.folder)
    if generation.offload != "none" and device.type != "cuda":
        raise PermanentFailure("/offload: it moves weights between host and GPU; without a GPU leave it out")
    check_folder(folder, model.files, hashes=False)
    diffusers = importlib.import_module("diffusers")
    dtype = getattr(torch, generation.dtype)
    dtypes = dict.fromkeys(model.record().float32_components, torch.float32)
    try:
        pipeline = diffusers.DiffusionPipeline.from_pretrained(
            folder,
            dtype={**dtypes, "default": dtype},
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=model.remote_code,
        )
    except (OSError, ValueError, TypeError, RuntimeError, KeyError, AttributeError, ImportError) as error:
        raise PermanentFailure(f"/model: {model.name} cannot be loaded: {str(error)[:500]}") from error
    modules = {name: part for name, part in pipeline.components.items() if isinstance(part, torch.nn.Module)}
    for name, module in modules.items():
        module.eval().requires_grad_(False)
        _refuse_missing(folder / name, module, f"{model.name}: {name}")
    if generation.offload == "none":
        own_pace().move(modules.values(), device)
        pipeline.to(device)
    for name, module in modules.items():
        _refuse_not_finite(module, f"{model.name}: {name}")
    if generation.quantisation != "none":
        quantise(pipeline, generation)
    if generation.offload == "group":
        for name in model.facts.denoisers:
            modules[name].enable_group_offload(
                onload_device=device, offload_type="block_level", num_blocks_per_group=1, use_stream=True
            )
        for name, module in modules.items():
            if name not in model.facts.denoisers:
                own_pace().move([module], device)
                module.to(device)
    nbytes = sum(_nbytes(module) for module in modules.values())
    movable = (
        generation.offload == "none" and generation.quantisation == "none" and generation.compile == "none"
    )
    return Loaded(generation.warm_key, pipeline, device, nbytes, movable)


def quiet_libraries() -> None:
    """Their progress bars and advice go to nobody; errors are raised."""
    diffusers = importlib.import_module("diffusers.utils.logging")
    diffusers.set_verbosity_error()
    diffusers.disable_progress_bar()
    transformers = importlib.import_module("transformers.utils.logging")
    transformers.set_verbosity_error()
    transformers.disable_progress_bar()


def quantise(pipeline: Any, generation: Generation) -> None:
    """Make the linear layers of the denoisers' blocks fp8 or int8, dynamically scaled by row.

    Raises :class:`farm.errors.NotInstalled` without torchao, and :class:`farm.errors.PermanentFailure` where
    the device cannot multiply in that type, or no layer can be held in it.
    """
    try:
        torchao = importlib.import_module("torchao.quantization")
    except ImportError:
        raise NotInstalled("/quantisation: it needs torchao: pip install torchao") from None
    if generation.quantisation == "fp8":
        if generation.device != "cuda" or torch.cuda.get_device_capability() < (8, 9):
            raise PermanentFailure("/quantisation: fp8 needs a GPU of compute capability 8.9; choose int8")
        if generation.dtype != "bfloat16":
            raise PermanentFailure(f"/dtype: fp8 layers take bfloat16 in and out, not {generation.dtype}")
        kind, given = torchao.Float8DynamicActivationFloat8WeightConfig, {"granularity": torchao.PerRow()}
    else:
        kind, given = torchao.Int8DynamicActivationInt8WeightConfig, {}
    # left to itself it changes the compiler's settings for the whole process, so for the jobs after this one
    config = kind(**given, set_inductor_config=False)
    for name in generation.model.facts.denoisers:
        denoiser = getattr(pipeline, name)
        if not any(_is_block_layer(module, path) for path, module in denoiser.named_modules()):
            raise PermanentFailure(
                f"/quantisation: no layer of {name} has sides that are multiples of 16; leave it out"
            )
        torchao.quantize_(denoiser, config, filter_fn=_is_block_layer)


def _is_block_layer(module: Any, name: str) -> bool:
    """A linear layer of a repeated block, of a shape that the GPU's fp8 and int8 products take."""
    return (
        isinstance(module, torch.nn.Linear)
        and "blocks." in name
        and not any(side % 16 for side in module.weight.shape)
    )


def _refuse_missing(folder: Path, module: Any, what: str) -> None:
    """Weights that no file holds are left at random by the libraries, with a line in a log."""
    if not type(module).__module__.startswith("diffusers."):
        return
    found: set[str] = set()
    open_file = importlib.import_module("safetensors").safe_open
    for path in folder.glob("*.safetensors"):
        with open_file(str(path), framework="pt") as file:
            found |= set(file.keys())
    missing = sorted(set(module.state_dict()) - found)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise PermanentFailure(f"/model: {what} lacks the weights {missing[0]}{more}")


def _refuse_not_finite(module: Any, what: str) -> None:
    for name, weight in module.named_parameters():
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            bad = int(weight.numel() - torch.isfinite(weight).sum())
            raise PermanentFailure(
                f"/model: {what}.{name} has {bad:,} values that are not finite (NaN or infinite); "
                "get the weights again"
            )


def _nbytes(module: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))
