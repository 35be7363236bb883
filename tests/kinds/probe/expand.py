"""Spec to steps and tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from pydantic import BaseModel

from farm.frame_range import FrameRange
from farm.plan import DependencyPlan, JobPlan, OutputDecl, StepPlan, TaskPlan
from jobs.kind import ExpandContext
from tests.kinds.probe.spec import Behaviour, ProbeStep, Spec

OUTPUT = "probe.png"


def expand(spec: BaseModel, context: ExpandContext) -> JobPlan:
    return JobPlan([_step(step) for step in cast(Spec, spec).steps])


def expand_deferred(
    spec: BaseModel, step_name: str, results: list[dict[str, Any]], context: ExpandContext
) -> StepPlan:
    step = next(step for step in cast(Spec, spec).steps if step.name == step_name)
    count = sum(int(result["tasks"]) for result in results)
    return _step(step.model_copy(update={"tasks": count}), made=True)


def _step(step: ProbeStep, *, made: bool = False) -> StepPlan:
    deferred = step.deferred_on is not None and not made
    outputs = ()
    if step.frames:
        outputs = (
            OutputDecl(OUTPUT, "png", step.do.width, step.do.height, ("R", "G", "B"), "uint8", "srgb"),
        )
    return StepPlan(
        name=step.name,
        engine="probe",
        pool=step.pool,
        tasks=() if deferred else _tasks(step),
        payload={},
        outputs=outputs,
        depends_on=tuple(
            DependencyPlan(name, "frames" if step.frame_wise else "whole") for name in step.after
        ),
        deferred=deferred,
        deferred_on=step.deferred_on,
        warm_key=step.warm_key,
        max_retries=step.max_retries,
        timeout_s=step.timeout_s,
        no_progress_s=step.no_progress_s,
    )


def _tasks(step: ProbeStep) -> Iterator[TaskPlan]:
    plain = step.do.model_dump(exclude_defaults=True)
    for position in range(step.tasks):
        first = position * step.frames + 1
        frames = FrameRange.of(range(first, first + step.frames)) if step.frames else None
        told = plain
        if position in step.per_task:
            told = Behaviour.model_validate(plain | step.per_task[position]).model_dump(exclude_defaults=True)
        yield TaskPlan(frames=frames, payload=told, rank=position, seconds=step.seconds)
