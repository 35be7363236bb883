"""Prompt embeddings by hash of text, encoder and version: the second film of a prompt runs no encoder.

A pipeline encodes in its method ``encode_prompt``. The view of a job gets one that remembers: the key covers
every argument and the version of the model, the value is what the encoder gave, kept in host memory.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections import OrderedDict
from typing import Any, Final

from farm.errors import PermanentFailure
from jobs.video.payload import Generation

torch: Any = importlib.import_module("torch")
BUDGET: Final = 256 * 2**20


class PromptCache:
    """Remembers what prompts became, up to a budget of bytes; the longest unused goes first."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._kept: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self.hits = 0
        self.misses = 0

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return sum(size for _, size in self._kept.values())

    def install(self, view: Any, version: str) -> None:
        """Let this view (and no other) encode through the cache."""
        encode = getattr(view, "encode_prompt", None)
        if encode is None:
            return

        def remembered(*args: Any, **kwargs: Any) -> Any:
            key = _key(version, type(view).__name__, args, kwargs)
            if key is None:
                return encode(*args, **kwargs)
            found = self._kept.get(key)
            if found is not None:
                self.hits += 1
                self._kept.move_to_end(key)
                return _moved(found[0], view._execution_device)
            self.misses += 1
            value = encode(*args, **kwargs)
            self._keep(key, _moved(value, "cpu"))
            return value

        view.encode_prompt = remembered

    def _keep(self, key: str, value: Any) -> None:
        size = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(value))
        if size > self._budget:
            return
        self._kept[key] = (value, size)
        while self.nbytes > self._budget:
            self._kept.popitem(last=False)


def refuse_long(view: Any, generation: Generation) -> None:
    """Refuse a prompt of more tokens than the encoder is shown: the libraries cut the rest off in silence.

    Raises :class:`farm.errors.PermanentFailure`.
    """
    tokenizer = getattr(view, "tokenizer", None)
    if tokenizer is None:
        return
    most = generation.max_sequence_length
    for pointer, text in (("/prompt", generation.prompt), ("/negative_prompt", generation.negative_prompt)):
        count = len(tokenizer(text, truncation=False, add_special_tokens=True).input_ids)
        if count > most:
            raise PermanentFailure(
                f"{pointer}: it has {count:,} tokens, and the text encoder is shown {most:,}; shorten it"
            )


def _key(version: str, pipeline: str, args: Any, kwargs: Any) -> str | None:
    """``None`` where an argument is a tensor: somebody has encoded already."""
    values = {**{str(index): value for index, value in enumerate(args)}, **kwargs}
    if any(isinstance(value, torch.Tensor) for value in values.values()):
        return None
    text = json.dumps([version, pipeline, values], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _moved(value: Any, device: Any) -> Any:
    """A copy on ``device``: neither a job nor the cache ever holds the other's tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device, copy=True)
    if isinstance(value, tuple):
        return tuple(_moved(item, device) for item in value)
    if isinstance(value, list):
        return [_moved(item, device) for item in value]
    return value
