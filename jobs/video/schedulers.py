"""The scheduler of a job: its own instance, built from the one that the model folder brings."""

from __future__ import annotations

import importlib
from typing import Any, Final

from farm.errors import PermanentFailure
from jobs.video.families import SchedulerName
from jobs.video.payload import Generation

_FLOW: Final = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
"""What makes a solver for noise predictions one for flow matching."""
_OPTIONS: Final[dict[SchedulerName, dict[str, Any]]] = {
    "unipc": _FLOW,
    "dpmpp_2m": _FLOW | {"algorithm_type": "dpmsolver++"},
    "dpmpp_sde": _FLOW | {"algorithm_type": "sde-dpmsolver++"},
    "deis": _FLOW,
    "sa_solver": _FLOW,
}
_SHIFTS: Final = ("flow_shift", "shift")


def build(shipped: Any, generation: Generation) -> Any:
    """A scheduler for ``generation``; ``shipped`` is the folder's own.

    Raises :class:`farm.errors.PermanentFailure` where the model's family has no such scheduler, or the
    scheduler has no shift to set.
    """
    record = generation.model.record()
    kind, options = type(shipped), dict[str, Any]()
    if (name := generation.scheduler) is not None:
        if name not in record.schedulers:
            known = ", ".join(record.schedulers) or "only its own: leave scheduler out"
            raise PermanentFailure(f"/scheduler: {name} is not one of {record.title}; it has {known}")
        kind = getattr(importlib.import_module("diffusers"), record.schedulers[name])
        options = _OPTIONS.get(name, {}) | dict(record.scheduler_options)
    shift = generation.flow_shift
    if shift is None and name is not None:
        # a shift goes by another name in each class; the folder's own goes over
        shift = next((shipped.config[key] for key in _SHIFTS if key in shipped.config), None)
    config = {key: value for key, value in dict(shipped.config).items() if key in _expected(kind)}
    made = kind.from_config(config | {k: v for k, v in options.items() if k in _expected(kind)})
    if shift is None:
        return made
    key = next((key for key in _SHIFTS if key in made.config), None)
    if key is None:
        if generation.flow_shift is None:
            return made
        raise PermanentFailure(f"/flow_shift: {kind.__name__} has no shift of noise levels; leave it out")
    return kind.from_config(made.config, **{key: shift})


def _expected(kind: Any) -> set[str]:
    return set(kind._get_init_keys(kind)) - {"self", "kwargs"}
