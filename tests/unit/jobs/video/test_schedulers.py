"""Schedulers by their names here: the right class, set for flow matching, shifted as asked."""

from __future__ import annotations

from typing import Any

import pytest

from farm.errors import PermanentFailure
from jobs.video import payload, schedulers
from tests.kinds import tiny_pipelines
from tests.unit.jobs.video.making import spec, step_of


def built(name: str, **wish: Any) -> Any:
    import diffusers

    generation = payload.read_step(step_of(spec(name)).payload).model_copy(update=wish)
    kind = {
        "wan": "UniPCMultistepScheduler",
        "ltx": "FlowMatchEulerDiscreteScheduler",
        "cogvideox": "CogVideoXDDIMScheduler",
    }[name]
    shipped = getattr(diffusers, kind).from_pretrained(tiny_pipelines.folder(name), subfolder="scheduler")
    return schedulers.build(shipped, generation)


@pytest.mark.parametrize(
    ("name", "kind", "shift", "settings"),
    [
        ("unipc", "UniPCMultistepScheduler", "flow_shift", {"use_flow_sigmas": True}),
        ("dpmpp_2m", "DPMSolverMultistepScheduler", "flow_shift", {"algorithm_type": "dpmsolver++"}),
        ("dpmpp_sde", "DPMSolverMultistepScheduler", "flow_shift", {"algorithm_type": "sde-dpmsolver++"}),
        ("deis", "DEISMultistepScheduler", "flow_shift", {"prediction_type": "flow_prediction"}),
        ("sa_solver", "SASolverScheduler", "flow_shift", {"use_flow_sigmas": True}),
        ("flow_euler", "FlowMatchEulerDiscreteScheduler", "shift", {}),
        ("flow_heun", "FlowMatchHeunDiscreteScheduler", "shift", {}),
        ("flow_lcm", "FlowMatchLCMScheduler", "shift", {}),
    ],
)
def test_each_name_is_its_class_with_the_shift(
    name: str, kind: str, shift: str, settings: dict[str, Any]
) -> None:
    made = built("wan", scheduler=name, flow_shift=5.0)
    assert type(made).__name__ == kind
    assert made.config[shift] == 5.0
    assert {key: made.config[key] for key in settings} == settings
    # without a wish of the job's the folder's own shift goes over, whatever it is called there
    assert built("wan", scheduler=name, flow_shift=None).config[shift] == 3.0


def test_without_a_name_the_folder_s_own_is_taken() -> None:
    made = built("cogvideox", scheduler=None, flow_shift=None)
    assert type(made).__name__ == "CogVideoXDDIMScheduler"
    assert made.config.snr_shift_scale == 3.0
    assert built("ltx", scheduler=None, flow_shift=None).config.shift_terminal == 0.1


def test_what_a_family_lacks_is_refused() -> None:
    with pytest.raises(
        PermanentFailure, match=r"^/scheduler: unipc is not one of CogVideoX; it has cogvideox_ddim"
    ):
        built("cogvideox", scheduler="unipc")
    with pytest.raises(PermanentFailure, match=r"^/flow_shift: CogVideoXDDIMScheduler has no shift"):
        built("cogvideox", flow_shift=2.0)
