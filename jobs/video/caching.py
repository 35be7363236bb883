"""Step caches: the schedule by step index is ours, the others are diffusers' hooks on the denoisers.

The hooks keep state that no checkpoint holds. It is cleared at every checkpoint step of every run
(:func:`clear`), so that a run which goes on from a checkpoint computes what the uninterrupted one does.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from farm.errors import PermanentFailure
from jobs.video.payload import Generation
from jobs.video.spec import Cache
from jobs.video.step_cache import Schedule, StepCache

torch: Any = importlib.import_module("torch")

_BRANCHES: Final = (r"(transformer_)?blocks\.\d+\.(attn1|attn2|ff|ffn)",)
"""What TaylorSeer extrapolates: diffusers' own pattern matches none of these models' layers."""


def schedule_of(generation: Generation) -> StepCache | None:
    """The step cache of a job that skips by schedule, else ``None``.

    Raises :class:`farm.errors.PermanentFailure` for a step that cannot be skipped.
    """
    cache = generation.cache
    if cache is None or cache.kind != "schedule":
        return None
    try:
        return StepCache(Schedule(frozenset(cache.skip), generation.steps))
    except ValueError as error:
        raise PermanentFailure(f"/cache/skip: {error}") from None


def hooked(generation: Generation) -> bool:
    """Whether diffusers' hooks hold cache state, so that only checkpoint steps are exact."""
    return generation.cache is not None and generation.cache.kind != "schedule"


@contextmanager
def enabled(view: Any, denoisers: list[Any], generation: Generation) -> Iterator[None]:
    """The job's hooks on its denoisers for as long as it runs."""
    if not hooked(generation):
        yield
        return
    assert generation.cache is not None
    config = _config(generation.cache, view)
    done: list[Any] = []
    try:
        for denoiser in denoisers:
            hooks = _hooks(denoiser)
            try:
                denoiser.enable_cache(config)
            except (ValueError, AttributeError, IndexError) as error:
                raise PermanentFailure(
                    f"/cache/kind: {generation.cache.kind} does not fit {type(denoiser).__name__}: {error}"
                ) from error
            done.append(denoiser)
            if _hooks(denoiser) == hooks:
                name = type(denoiser).__name__
                raise PermanentFailure(
                    f"/cache/kind: {generation.cache.kind} finds no layer of {name} to save"
                )
        yield
    finally:
        for denoiser in done:
            denoiser.disable_cache()


def clear(denoisers: list[Any]) -> None:
    """Forget what the hooks hold. Not inside a forward pass: it clears their context as well."""
    for denoiser in denoisers:
        registry = getattr(denoiser, "_diffusers_hook", None)
        if registry is not None:
            registry.reset_stateful_hooks(recurse=True)


def _hooks(denoiser: Any) -> int:
    """Hooks on the denoiser's layers: a cache that adds none would change nothing, and say nothing."""
    registries = (getattr(module, "_diffusers_hook", None) for module in denoiser.modules())
    return sum(len(registry.hooks) for registry in registries if registry is not None)


def _config(cache: Cache, view: Any) -> Any:
    diffusers = importlib.import_module("diffusers")
    match cache.kind:
        case "first_block":
            return diffusers.FirstBlockCacheConfig(threshold=cache.threshold or 0.05)
        case "taylorseer":
            return diffusers.TaylorSeerCacheConfig(
                cache_interval=cache.interval or 5,
                cache_identifiers=list(_BRANCHES),
                taylor_factors_dtype=torch.float32,
            )
        case "pyramid":
            return diffusers.PyramidAttentionBroadcastConfig(
                spatial_attention_block_skip_range=cache.interval or 2,
                current_timestep_callback=lambda: view.current_timestep,
            )
        case "faster":
            return diffusers.FasterCacheConfig(
                spatial_attention_block_skip_range=cache.interval or 2,
                current_timestep_callback=lambda: view.current_timestep,
            )
        case "mag":
            raise PermanentFailure(
                "/cache/kind: mag needs magnitude ratios measured on this very model, and it has none; "
                "choose first_block or schedule"
            )
        case other:
            raise PermanentFailure(f"/cache/kind: {other} is not known")
