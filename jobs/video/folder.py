"""Look into a diffusers pipeline folder: is it whole, is it safe, what can it do. Loads no tensor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from farm.errors import InvalidInput
from jobs.video.family_facts import facts_of
from jobs.video.models import WEIGHTS, ModelFile, ModelVersion, digest_of, hash_file
from jobs.video.safetensors_header import read_header

INDEX: Final = "model_index.json"
SETTINGS: Final = "settings.json"
"""A folder's own recommendation (:class:`jobs.video.facts.SavedDefaults`)."""
TINY_DECODER: Final = "tiny_decoder.safetensors"
"""Weights of a decoder for previews (:mod:`jobs.video.tiny_decoder`)."""
_PICKLES: Final = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_LEFT_OUT: Final = _PICKLES | {".msgpack", ".h5", ".onnx", ".py", ".pyc", ".lock", ".gguf", ".md"}
_LIBRARIES: Final = frozenset({"diffusers", "transformers"})
Progress = Callable[[int], None]


def inspect(
    name: str, folder: Path, *, remote_code: bool = False, read: Progress | None = None
) -> ModelVersion:
    """The version that a folder is. ``read`` is told bytes as they are hashed.

    Raises :class:`farm.errors.InvalidInput` for a folder that is missing, partial, that has pickled weights
    only, or that brings Python of its own while ``remote_code`` does not allow it.
    """
    folder = folder.resolve()
    index = _json(folder, INDEX)
    if not isinstance(index.get("_class_name"), str | list):
        raise InvalidInput(f"{folder / INDEX} names no pipeline class")
    own = _own_code(folder, index)
    if own and not remote_code:
        raise InvalidInput(
            f"{folder} brings Python of its own ({', '.join(own[:3])}), which would run on every node; an "
            "administrator who has read it may add it with --allow-remote-code"
        )
    components: dict[str, tuple[str, str]] = {}
    configs: dict[str, dict[str, Any]] = {}
    files: set[Path] = {folder / INDEX}
    parameters: dict[str, int] = {}
    for part, entry in index.items():
        if part.startswith("_") or not isinstance(entry, list) or len(entry) != 2 or None in entry:
            continue
        library, cls = map(str, entry)
        components[part] = (library, cls)
        place = folder / part
        if not place.is_dir():
            raise InvalidInput(
                f"{folder} is partial: {INDEX} names {part} ({cls}), and there is no folder {part}"
            )
        files |= _listed(place, code=remote_code)
        if (count := _check_component(folder, part, cls)) is not None:
            parameters[part] = count
            configs[part] = _json(folder, f"{part}/config.json")
        elif (place / "scheduler_config.json").is_file():
            configs[part] = _json(folder, f"{part}/scheduler_config.json")
    if remote_code:
        files |= set(folder.glob("*.py"))
    saved = _json(folder, SETTINGS) if (folder / SETTINGS).is_file() else None
    if saved is not None:
        files.add(folder / SETTINGS)
    weights = [path for path in files if path.suffix == WEIGHTS]
    if (folder / TINY_DECODER).is_file():
        # for previews alone: not among the weights that a slot must find room for
        _check_tiny_decoder(folder / TINY_DECODER)
        files.add(folder / TINY_DECODER)
    facts = facts_of(
        index, {part: cls for part, (_, cls) in components.items()}, configs, saved, parameters,
        weight_bytes=sum(path.stat().st_size for path in weights), remote_code=bool(own),
    )  # fmt: skip
    listed = []
    for path in sorted(files):
        size = path.stat().st_size
        listed.append(
            ModelFile(path=path.relative_to(folder).as_posix(), bytes=size, sha256=hash_file(path, read))
        )
    return ModelVersion(
        name=name,
        digest=digest_of(listed),
        folder=str(folder),
        remote_code=bool(own) and remote_code,
        files=listed,
        facts=facts,
    )


def place_of(address: str) -> Path:
    """The folder that a path or a ``file:///…`` address names: the stores that the farm reads are folders.

    Raises :class:`farm.errors.InvalidInput` for any other address.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        return Path(address)
    if scheme != "file" or not rest.startswith("/"):
        raise InvalidInput(
            f"{address}: models are read from folders that every node sees; give a path or file:///path "
            "(mount the store, or copy the pipeline's folder out of it)"
        )
    return Path(unquote(rest))


def _json(folder: Path, path: str) -> dict[str, Any]:
    try:
        found = json.loads((folder / path).read_text("utf-8"))
    except FileNotFoundError:
        if not folder.is_dir():
            raise InvalidInput(f"there is no folder {folder}") from None
        hint = "; a diffusers pipeline folder has one" if path == INDEX else "; the folder is partial"
        raise InvalidInput(f"{folder} has no {path}{hint}") from None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{folder / path} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"{folder / path} holds no JSON object")
    return found


def _own_code(folder: Path, index: dict[str, Any]) -> list[str]:
    """What in a folder would run as Python: a pipeline or component class of its own, or an ``auto_map``."""
    found = []
    if isinstance(index["_class_name"], list):
        found.append(f"pipeline {index['_class_name'][-1]}")
    for part, entry in index.items():
        if part.startswith("_") or not isinstance(entry, list) or len(entry) != 2 or None in entry:
            continue
        if str(entry[0]) not in _LIBRARIES:
            found.append(f"{part}: {entry[0]}.{entry[1]}")
        config = folder / part / "config.json"
        if config.is_file() and "auto_map" in _json(folder, f"{part}/config.json"):
            found.append(f"{part}: auto_map")
    return found


def _listed(place: Path, *, code: bool) -> set[Path]:
    """The files of a component that count: no pickles, no hidden files, Python only where it was allowed."""
    left_out = _LEFT_OUT - {".py"} if code else _LEFT_OUT
    return {
        path
        for path in place.rglob("*")
        if path.is_file()
        and path.suffix.lower() not in left_out
        and not any(part.startswith(".") for part in path.relative_to(place).parts)
    }


def _check_component(folder: Path, part: str, cls: str) -> int | None:
    """The number of parameters of a component with weights, checked to be whole; ``None`` for others."""
    place = folder / part
    if cls.endswith("Scheduler"):
        if not (place / "scheduler_config.json").is_file():
            raise InvalidInput(f"{folder} is partial: {part} has no scheduler_config.json")
        return None
    if "Tokenizer" in cls or cls.endswith(("Processor", "ProcessorFast", "FeatureExtractor")):
        if not any(place.iterdir()):
            raise InvalidInput(f"{folder} is partial: {part} is empty")
        return None
    _json(folder, f"{part}/config.json")
    names = _weight_files(folder, part)
    count = 0
    for name in names:
        path = place / name
        if not path.is_file():
            raise InvalidInput(f"{folder} is partial: {part}/{name} is missing")
        with path.open("rb") as file:
            header = read_header(file, f"{part}/{name}")
        count += sum(tensor.count for tensor in header.tensors.values())
    return count


def _check_tiny_decoder(path: Path) -> None:
    with path.open("rb") as file:
        tensors = read_header(file, path.name).tensors
    missing = [name for name in ("decoder.1.weight", "decoder.22.weight") if name not in tensors]
    if missing:
        raise InvalidInput(
            f"{path.name} is no TAEHV decoder: it has no {missing[0]}; take it out of the folder"
        )


def _weight_files(folder: Path, part: str) -> list[str]:
    place = folder / part
    for base in ("diffusion_pytorch_model", "model"):
        if (place / f"{base}{WEIGHTS}").is_file():
            return [f"{base}{WEIGHTS}"]
        if (place / f"{base}{WEIGHTS}.index.json").is_file():
            shards = _json(folder, f"{part}/{base}{WEIGHTS}.index.json").get("weight_map")
            if isinstance(shards, dict) and shards:
                return sorted({Path(str(name)).name for name in shards.values()})
    others = sorted(path.name for path in place.iterdir() if path.is_file())
    if any(Path(name).suffix in _PICKLES for name in others):
        raise InvalidInput(
            f"{part} has its weights as a pickle only ({', '.join(others)[:200]}), which can run code when "
            "read; convert them to safetensors"
        )
    variants = [name for name in others if name.endswith(WEIGHTS)]
    if variants:
        raise InvalidInput(
            f"{part} has only {', '.join(variants)[:200]}; the farm loads "
            f"diffusion_pytorch_model{WEIGHTS} or model{WEIGHTS} (or their shards): rename the one "
            "that is wanted"
        )
    raise InvalidInput(f"{folder} is partial: {part} has no {WEIGHTS} weights")
