"""Weights in page-locked host memory: one stretch, nothing lost, unlocked once whoever lets go."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from farm.errors import TaskFailed
from jobs.video.pipelines import Loaded
from jobs.video.residency import Residency
from jobs.video.shelf import Shelf


class Part(torch.nn.Module):
    """Two names for one weight, two number types, an odd size, a view that is not dense."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(5, 3)
        self.tied = torch.nn.Linear(5, 3)
        self.tied.weight = self.first.weight
        self.half = torch.nn.Linear(7, 2).to(torch.bfloat16)
        self.register_buffer("turned", torch.arange(6.0).view(2, 3).T)
        self.requires_grad_(False)


class Cudart:
    """Writes down what is locked; ``code`` is what locking answers."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.locked: dict[int, int] = {}
        self.unlocked: list[int] = []

    def cudaHostRegister(self, pointer: int, nbytes: int, flags: int) -> int:
        if not self.code:
            self.locked[pointer] = nbytes
        return self.code

    def cudaHostUnregister(self, pointer: int) -> int:
        self.unlocked.append(pointer)
        return 0


@pytest.fixture
def cudart(monkeypatch: pytest.MonkeyPatch) -> Cudart:
    made = Cudart()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


def test_all_tensors_lie_in_one_locked_stretch_with_the_values_that_they_had(cudart: Cudart) -> None:
    part = Part()
    before = {name: tensor.clone() for name, tensor in part.state_dict().items()}
    shelf = Shelf([part])
    shelf.put()

    assert all(torch.equal(tensor, before[name]) for name, tensor in part.state_dict().items())
    assert part.tied.weight is part.first.weight
    [(start, nbytes)] = cudart.locked.items()
    # five dense tensors of under 256 bytes each (the tied one once), rounded up to that; the view apart
    assert nbytes == shelf.nbytes == 5 * 256
    dense = [tensor for tensor in part.state_dict().values() if tensor.is_contiguous()]
    assert all(start <= tensor.data_ptr() < start + nbytes for tensor in dense)
    shelf.close()
    assert cudart.unlocked == [start]
    assert torch.equal(part.first.weight, before["first.weight"]), "what is still there stays valid"
    del shelf
    gc.collect()
    assert cudart.unlocked == [start]


def test_a_model_that_is_forgotten_unlocks_its_memory(cudart: Cudart) -> None:
    shelf = Shelf([Part()])
    shelf.put()
    del shelf
    gc.collect()
    assert cudart.unlocked == list(cudart.locked)


def loaded_on_gpu() -> Loaded:
    pipeline = SimpleNamespace(components={"part": Part(), "tokenizer": object()})
    return Loaded("key", pipeline, torch.device("cuda"), nbytes=100)


def test_a_model_that_makes_room_waits_in_locked_memory_and_is_dropped_where_none_can_be_had(
    cudart: Cudart,
) -> None:
    def generation(key: str) -> Any:
        facts = SimpleNamespace(weight_bytes=100)
        return SimpleNamespace(device="cuda", warm_key=key, model=SimpleNamespace(facts=facts))

    def load(wanted: Any) -> Loaded:
        made = loaded_on_gpu()
        made.key = wanted.warm_key
        return made

    from contextlib import nullcontext

    residency = Residency(device_budget=100, host_budget=1000, load=load)
    residency.get(generation("a"), nullcontext)
    residency.get(generation("b"), nullcontext)
    assert residency.keys == ["a", "b"]
    assert len(cudart.locked) == 1
    cudart.code = 2
    residency.get(generation("c"), nullcontext)
    assert residency.keys == ["a", "c"]


def test_memory_that_cannot_be_locked_leaves_everything_where_it_is(cudart: Cudart) -> None:
    cudart.code = 2
    loaded = loaded_on_gpu()
    places = [tensor.data_ptr() for tensor in loaded.pipeline.components["part"].state_dict().values()]
    with pytest.raises(TaskFailed, match=r"1,280 bytes of weights cannot be page-locked \(CUDA error 2\)"):
        loaded.move("cpu")
    now = [tensor.data_ptr() for tensor in loaded.pipeline.components["part"].state_dict().values()]
    assert now == places
