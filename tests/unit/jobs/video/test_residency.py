"""What a slot keeps loaded: bounded, the longest unused first to go, and flat over many switches."""

from __future__ import annotations

import contextlib
from typing import Any

import psutil
import torch

from jobs.video import payload, pipelines
from jobs.video.payload import Generation
from jobs.video.pipelines import Loaded
from jobs.video.prompts import PromptCache
from jobs.video.residency import Residency, release_memory
from tests.unit.jobs.video.making import spec, step_of

MIB = 2**20


def generation(name: str = "wan", **fields: Any) -> Generation:
    return payload.read_step(step_of(spec(name, **fields)).payload)


def sized(name: str, weight_bytes: int) -> Generation:
    """A generation whose model has an identity and a size of its own."""
    plain = generation()
    facts = plain.model.facts.model_copy(update={"weight_bytes": weight_bytes})
    model = plain.model.model_copy(update={"digest": name * 64, "facts": facts})
    return plain.model_copy(update={"model": model})


def test_the_longest_unused_makes_room() -> None:
    loads: list[str] = []

    def load(wanted: Generation) -> Loaded:
        loads.append(wanted.model.digest[0])
        return Loaded(wanted.warm_key, object(), torch.device("cpu"), wanted.model.facts.weight_bytes)

    residency = Residency(host_budget=100, load=load)
    for name, size in (("a", 40), ("b", 40), ("a", 40), ("c", 40), ("a", 40), ("b", 40), ("d", 400)):
        residency.get(sized(name, size), contextlib.nullcontext)
    # c pushed b out, b pushed c out; d is over the whole budget and is loaded all the same, alone
    assert loads == ["a", "b", "c", "b", "d"]
    assert [key.split(":")[1][0] for key in residency.keys] == ["d"]


def test_a_model_on_one_device_is_not_taken_for_another() -> None:
    loads: list[str] = []

    def load(wanted: Generation) -> Loaded:
        loads.append(wanted.device)
        return Loaded(wanted.warm_key, object(), torch.device("cpu"), 1)

    residency = Residency(device_budget=100, host_budget=100, load=load)
    plain = sized("a", 1)
    for device in ("cpu", "cuda", "cpu", "cuda"):
        residency.get(plain.model_copy(update={"device": device}), contextlib.nullcontext)
    assert loads == ["cpu", "cuda"]


def test_switching_models_leaves_memory_flat_after_the_fifth_switch() -> None:
    """Each switch loads a model from its folder and releases the one before, made 16 MiB heavier here."""

    def load(wanted: Generation) -> Loaded:
        loaded = pipelines.load(wanted)
        loaded.pipeline.transformer.register_buffer("ballast", torch.ones(4 * MIB))
        return loaded

    residency = Residency(host_budget=1, load=load)
    models = [generation("wan"), generation("cogvideox")]
    process, after_fifth, highest = psutil.Process(), 0, 0
    for switch in range(1, 10):
        residency.get(models[switch % 2], contextlib.nullcontext)
        assert len(residency.keys) == 1
        if switch == 5:
            after_fifth = process.memory_info().rss
        elif switch > 5:
            highest = max(highest, process.memory_info().rss)
    residency.clear()
    # four models that were kept would be 64 MiB
    assert highest - after_fifth < 16 * MIB


def test_prompt_embeddings_stay_within_their_budget() -> None:
    class View:
        _execution_device = torch.device("cpu")

        def __init__(self) -> None:
            self.ran: list[str] = []

        def encode_prompt(self, prompt: str, **_: Any) -> tuple[torch.Tensor, None]:
            self.ran.append(prompt)
            return torch.full((256,), float(len(prompt))), None

    cache, view = PromptCache(budget=2 * 1024), View()
    cache.install(view, "v1")
    for prompt in ("a", "bb", "a", "ccc", "a", "bb"):
        embedded, none = view.encode_prompt(prompt, device=torch.device("cpu"))
        assert none is None
        assert float(embedded[0]) == len(prompt)
        embedded.zero_()  # a job's own copy
    assert view.ran == ["a", "bb", "ccc", "bb"]
    assert cache.nbytes == 2 * 1024
    other = View()
    cache.install(other, "v2")
    other.encode_prompt("a", device=torch.device("cpu"))
    assert other.ran == ["a"], "another version's embeddings were taken"


def test_a_view_has_a_scheduler_of_its_own_over_shared_weights() -> None:
    loaded = pipelines.load(generation())
    one, two = loaded.view(generation()), loaded.view(generation(scheduler="flow_euler", flow_shift=5.0))
    assert one.transformer is two.transformer is loaded.pipeline.transformer
    assert one.scheduler is not loaded.pipeline.scheduler
    assert type(one.scheduler).__name__ == "UniPCMultistepScheduler"
    assert one.scheduler.config.flow_shift == 3.0
    assert type(two.scheduler).__name__ == "FlowMatchEulerDiscreteScheduler"
    assert two.scheduler.config.shift == 5.0
    del one, two, loaded
    release_memory()
