"""Nested Python state, tensors within, as one safetensors buffer and back.

A scheduler's state is a dictionary of numbers, lists, arrays and tensors, several of which are one tensor
under two names. :func:`pack` takes the tensors out, each once, and leaves a JSON skeleton;
:func:`unpack` puts them back together. Nothing is pickled: a checkpoint can hold data and nothing else.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jobs.pacing import own_pace

torch: Any = importlib.import_module("torch")


class CannotPack(TypeError):
    """The state holds something that is neither data nor a tensor."""


def pack(tree: Any) -> tuple[Any, dict[str, Any]]:
    """JSON skeleton of ``tree`` and its tensors by name; a tensor that occurs twice is kept once.

    Takes ``None``, booleans, numbers, strings, lists, tuples, dictionaries with string keys, NumPy arrays and
    scalars, torch tensors, dtypes and devices, and diffusers' output classes. Raises :class:`CannotPack`.
    """
    tensors: dict[str, Any] = {}
    names: dict[tuple[Any, ...], str] = {}

    def keep(tensor: Any) -> str:
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device))
        name = names.get(key) if tensor.numel() else None
        if name is None:
            name = f"t{len(tensors)}"
            tensors[name] = tensor
            names[key] = name
        return name

    def walk(value: Any) -> Any:
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, np.generic):
            return {"~": "scalar", "dtype": value.dtype.str, "v": walk(value.item())}
        if isinstance(value, int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"~": "float", "v": repr(value)}
        if isinstance(value, torch.Tensor):
            return {"~": "tensor", "name": keep(value), "host": value.device.type == "cpu"}
        if isinstance(value, np.ndarray):
            return {"~": "array", "name": keep(torch.from_numpy(np.ascontiguousarray(value)))}
        if isinstance(value, torch.dtype):
            return {"~": "dtype", "v": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"~": "device", "host": value.type == "cpu"}
        if _is_output(value):
            fields = {name: walk(item) for name, item in value.items()}
            return {"~": "output", "of": f"{type(value).__module__}:{type(value).__qualname__}", "v": fields}
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                raise CannotPack("a dictionary with keys that are not strings cannot be kept")
            return {"~": "dict", "v": {key: walk(item) for key, item in value.items()}}
        if isinstance(value, tuple):
            return {"~": "tuple", "v": [walk(item) for item in value]}
        if isinstance(value, list):
            return [walk(item) for item in value]
        raise CannotPack(f"a {type(value).__module__}.{type(value).__qualname__} cannot be kept")

    return walk(tree), tensors


def unpack(skeleton: Any, tensors: Mapping[str, Any], device: Any = "cpu") -> Any:
    """What :func:`pack` was given; tensors that were not in host memory come to ``device``.

    Raises :class:`ValueError` for a skeleton that :func:`pack` has not made.
    """
    moved: dict[tuple[str, bool], Any] = {}

    def tensor(name: str, host: bool) -> Any:
        if (name, host) not in moved:
            moved[name, host] = own_pace().taken(tensors[name], "cpu" if host else device)
        return moved[name, host]

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(item) for item in value]
        if not isinstance(value, dict):
            return value
        match value.get("~"):
            case "tensor":
                return tensor(value["name"], value["host"])
            case "array":
                return tensors[value["name"]].numpy().copy()
            case "scalar":
                return np.dtype(value["dtype"]).type(walk(value["v"]))
            case "float":
                return float(value["v"])
            case "dtype":
                return getattr(torch, value["v"])
            case "device":
                return torch.device("cpu" if value["host"] else device)
            case "dict":
                return {key: walk(item) for key, item in value["v"].items()}
            case "tuple":
                return tuple(walk(item) for item in value["v"])
            case "output":
                return _output_class(value["of"])(**{key: walk(item) for key, item in value["v"].items()})
            case other:
                raise ValueError(f"{other!r} is not a kind of state")

    return walk(skeleton)


def zeros_like(form: Any, device: Any) -> Any:
    """A model output of zeros of the recorded form (:func:`form_of`)."""
    if isinstance(form, list):
        return [zeros_like(item, device) for item in form]
    if not isinstance(form, dict):
        return form
    match form["~"]:
        case "zeros":
            return torch.zeros(form["shape"], dtype=getattr(torch, form["dtype"]), device=device)
        case "tuple":
            return tuple(zeros_like(item, device) for item in form["v"])
        case "output":
            fields = {key: zeros_like(item, device) for key, item in form["v"].items()}
            return _output_class(form["of"])(**fields)
        case other:
            raise ValueError(f"{other!r} is not a form of output")


def form_of(value: Any) -> Any:
    """Shapes, dtypes and structure of a model output, as JSON."""
    if isinstance(value, torch.Tensor):
        return {"~": "zeros", "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if _is_output(value):
        fields = {name: form_of(item) for name, item in value.items()}
        return {"~": "output", "of": f"{type(value).__module__}:{type(value).__qualname__}", "v": fields}
    if isinstance(value, tuple):
        return {"~": "tuple", "v": [form_of(item) for item in value]}
    if isinstance(value, list):
        return [form_of(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CannotPack(f"a model output of type {type(value).__qualname__} cannot be replayed")


def _is_output(value: Any) -> bool:
    base = importlib.import_module("diffusers.utils").BaseOutput
    return isinstance(value, base)


def _output_class(path: str) -> Any:
    """Only diffusers' own output classes are made again: a checkpoint cannot name anything else."""
    module, _, name = path.partition(":")
    if not module.startswith("diffusers."):
        raise ValueError(f"{path} is not an output of diffusers")
    found = getattr(importlib.import_module(module), name)
    if not issubclass(found, importlib.import_module("diffusers.utils").BaseOutput):
        raise ValueError(f"{path} is not an output of diffusers")
    return found
