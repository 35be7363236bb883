"""Context parallel: the sequence of a denoiser split over the ranks of a gang, by diffusers' plan for it.

*Ulysses* (Jacobs et al., 2023): for attention each rank changes its part of the sequence for the whole
sequence of its part of the heads. *Ring* (Liu et al., 2023): each rank keeps its queries, sees the keys and
values of one rank after the other, and merges what it gets by the log-sum-exp of each.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from farm.errors import PermanentFailure

torch: Any = importlib.import_module("torch")


def heads_of(denoisers: list[Any]) -> int:
    """Attention heads of the denoisers; 0 where they do not say."""
    counts = {int(getattr(denoiser.config, "num_attention_heads", 0) or 0) for denoiser in denoisers}
    return counts.pop() if len(counts) == 1 else 0


def enable_context_parallel(denoisers: list[Any], mesh: Any) -> None:
    """Split the sequence of each denoiser over the ranks of ``mesh``, whose dimensions are ring and ulysses.

    Raises :class:`farm.errors.PermanentFailure` where diffusers cannot.
    """
    diffusers = importlib.import_module("diffusers")
    ring, ulysses = mesh.shape
    for denoiser in denoisers:
        if getattr(denoiser, "_parallel_config", None) is not None:
            continue
        # with a mesh of the gang's own: diffusers would make new groups, which nobody ends, for every film
        config = diffusers.ContextParallelConfig(ring_degree=ring, ulysses_degree=ulysses, mesh=mesh)
        if not torch.cuda.is_available():
            # diffusers looks for an accelerator to count; the plan itself runs on CPUs just as well
            denoiser._resolve_parallel_config = functools.partial(_resolved_on_cpus, denoiser)
        try:
            denoiser.enable_parallelism(config=config)
        except (ValueError, RuntimeError, AttributeError) as error:
            raise PermanentFailure(f"/gpus: {type(denoiser).__name__} cannot be split: {error}") from error


def _resolved_on_cpus(denoiser: Any, config: Any) -> Any:
    dist = importlib.import_module("torch.distributed")
    parallel = importlib.import_module("diffusers.models._modeling_parallel").ParallelConfig
    whole = parallel(context_parallel_config=config)
    whole.setup(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), mesh=config.mesh)
    denoiser._parallel_config = whole
    return whole


def disable_context_parallel(denoisers: list[Any]) -> None:
    """Whole sequences again."""
    remove = importlib.import_module("diffusers.hooks.context_parallel").remove_context_parallel
    for denoiser in denoisers:
        if getattr(denoiser, "_parallel_config", None) is None:
            continue
        remove(denoiser, denoiser._cp_plan)
        denoiser._parallel_config = None
        vars(denoiser).pop("_resolve_parallel_config", None)
        for module in denoiser.modules():
            processor = getattr(module, "processor", None)
            if processor is not None and getattr(processor, "_parallel_config", None) is not None:
                processor._parallel_config = None
