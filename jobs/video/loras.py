"""LoRAs: checked against the model before they touch it, and gone without a trace after the job."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from farm.errors import PermanentFailure
from jobs.video.payload import Generation


@contextmanager
def applied(view: Any, generation: Generation, files: list[Path]) -> Iterator[None]:
    """The job's LoRAs on its denoisers, each with its weight; ``files`` are their files, in order.

    Raises :class:`farm.errors.PermanentFailure` for a file that is not a LoRA of this model.
    """
    if not generation.loras:
        yield
        return
    names = generation.model.facts.denoisers
    chosen: dict[str, dict[str, float]] = {}
    try:
        for index, (lora, path) in enumerate(zip(generation.loras, files, strict=True)):
            pointer = f"/loras/{index}"
            layers = _layers(view, path, pointer)
            for name in _targets(lora.expert, names, pointer):
                denoiser = getattr(view, name)
                _check(denoiser, layers, pointer, generation.model.name)
                adapter = f"lora{index}"
                try:
                    denoiser.load_lora_adapter(dict(layers), prefix=None, adapter_name=adapter)
                except (ValueError, RuntimeError, KeyError, TypeError) as error:
                    raise PermanentFailure(
                        f"{pointer}: the LoRA cannot be put on the model: {error}"
                    ) from error
                chosen.setdefault(name, {})[adapter] = lora.weight
        for name, weights in chosen.items():
            getattr(view, name).set_adapters(list(weights), list(weights.values()))
        yield
    finally:
        for name in names:
            denoiser = getattr(view, name, None)
            if denoiser is not None and getattr(denoiser, "peft_config", None):
                denoiser.unload_lora()


def _targets(expert: str, names: list[str], pointer: str) -> list[str]:
    if expert == "both":
        return names
    if len(names) < 2:
        raise PermanentFailure(f"{pointer}/expert: this model has one denoiser; write both")
    return [names[0] if expert == "high_noise" else names[1]]


def _layers(view: Any, path: Path, pointer: str) -> dict[str, Any]:
    """The file's tensors under the denoiser's own names, whatever tool wrote it."""
    if not hasattr(view, "lora_state_dict"):
        raise PermanentFailure(f"{pointer}: {type(view).__name__} takes no LoRA; leave loras out")
    load = importlib.import_module("safetensors.torch").load_file
    try:
        raw = load(str(path))
    except Exception as error:  # the library raises its own class for damaged files
        raise PermanentFailure(f"{pointer}/path: {path.name} is not a safetensors file: {error}") from error
    try:
        state = view.lora_state_dict(raw)
        state = state[0] if isinstance(state, tuple) else state
    except Exception as error:  # the converters index into what they expect
        raise PermanentFailure(
            f"{pointer}/path: {path.name} is not a LoRA that is known here: {error}"
        ) from error
    layers = {key.removeprefix("transformer."): value for key, value in state.items()}
    foreign = [key for key in layers if key.startswith(("text_encoder", "unet."))]
    if foreign:
        raise PermanentFailure(
            f"{pointer}/path: {path.name} changes {foreign[0].partition('.')[0]} as well; "
            "only LoRAs of the denoiser are taken"
        )
    if not any(".lora_A." in key or ".lora_B." in key for key in layers):
        raise PermanentFailure(f"{pointer}/path: {path.name} holds no LoRA layers")
    torch = importlib.import_module("torch")
    for key, value in layers.items():
        if not bool(torch.isfinite(value.float()).all()):
            raise PermanentFailure(f"{pointer}/path: {path.name}: {key} has values that are not finite")
    return layers


def _check(denoiser: Any, layers: dict[str, Any], pointer: str, model: str) -> None:
    """Each layer's module is there, and of the size that the layer was trained for."""
    modules = dict(denoiser.named_modules())
    for key, value in layers.items():
        name, _, rest = key.partition(".lora_")
        if not rest:
            continue
        module = modules.get(name)
        # with an earlier LoRA on it, a linear layer is wrapped
        module = getattr(module, "base_layer", module)
        weight = getattr(module, "weight", None)
        if weight is None:
            raise PermanentFailure(f"{pointer}: the LoRA is for another model: {model} has no layer {name!r}")
        side, size = ("in", value.shape[1]) if rest.startswith("A") else ("out", value.shape[0])
        should = weight.shape[1] if side == "in" else weight.shape[0]
        if size != should:
            raise PermanentFailure(
                f"{pointer}: the LoRA is for another model: {name} has {should} values {side}, not {size}"
            )
