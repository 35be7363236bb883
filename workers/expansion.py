"""Deferred steps: how ``finish`` asks a kind for tasks that depend on what an earlier step found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.plan import StepPlan
from jobs import registry
from jobs.kind import Asset, ExpandContext


def expand_after(
    kind: str,
    spec: dict[str, Any],
    step_name: str,
    results: list[dict[str, Any]],
    assets: Mapping[str, tuple[str, int]],
) -> StepPlan:
    """The tasks of a deferred step. ``assets`` maps job paths to SHA-256 and bytes."""
    chosen = registry.kind(kind)
    context = ExpandContext(
        assets={path: Asset(path, sha256, nbytes) for path, (sha256, nbytes) in assets.items()}
    )
    return chosen.expand_deferred(chosen.parse(spec), step_name, results, context)
