"""Exact resume by replay: a run that was parked ends in the same bits.

That a killed process's run does so in a new one is shown on a whole farm, in ``tests/e2e/test_video.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from farm.errors import CancelRequested, ParkRequested, PermanentFailure
from jobs.video import checkpoint
from jobs.video.replay import OtherInputs, Run
from jobs.video.step_cache import Schedule, StepCache
from tests.kinds import tiny_pipelines

STEPS = 6


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """With two, tests wait for each other's on a shared machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


_pipes: dict[str, Any] = {}


def pipeline(name: str) -> Any:
    import diffusers

    if name not in _pipes:
        pipe = diffusers.DiffusionPipeline.from_pretrained(
            tiny_pipelines.folder(name), dtype=torch.float32, use_safetensors=True
        )
        pipe.set_progress_bar_config(disable=True)
        _pipes[name] = pipe
    return _pipes[name]


def arguments(name: str, seed: int) -> dict[str, Any]:
    from PIL import Image

    given: dict[str, Any] = {
        "prompt": "a red cat runs",
        "negative_prompt": "blurry",
        "width": 32,
        "height": 32,
        "num_frames": 9 if name in ("ltx", "cogvideox") else 5,
        "num_inference_steps": STEPS,
        "generator": torch.Generator().manual_seed(seed),
        "max_sequence_length": 16,
        "output_type": "latent",
    }
    if name == "ltx":
        given |= {"width": 64, "height": 64}
    if name == "wan22_image":
        given["image"] = Image.new("RGB", (32, 32), (200, 30, 60))
    return given


def make(pipe: Any, name: str, seed: int = 7, **watch: Any) -> torch.Tensor:
    given = arguments(name, seed)
    with torch.inference_mode(), Run(pipe, [given["generator"]], **watch):
        latents: torch.Tensor = pipe(**given).frames
    return latents.clone()


def park_at(step: int, path: Path) -> Any:
    def boundary(run: Run) -> None:
        if run.step == step:
            snapshot = run.snapshot()
            assert snapshot is not None
            snapshot.detach().write(path)
            raise ParkRequested

    return boundary


def with_scheduler(pipe: Any, scheduler: str, **options: Any) -> Any:
    import diffusers

    config = dict(pipe.scheduler.config)
    made = getattr(diffusers, scheduler).from_config(config, **options)
    parts = dict(pipe.components)
    view = type(pipe)(
        **{**parts, "scheduler": made},
        **{key: pipe.config[key] for key in ("boundary_ratio", "expand_timesteps") if key in pipe.config},
    )
    view.set_progress_bar_config(disable=True)
    return view


FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 3.0}
CASES: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "unipc-2": ("wan", None, {}),
    "unipc-3": ("wan", "UniPCMultistepScheduler", FLOW | {"solver_order": 3}),
    "dpmpp-2m": ("wan", "DPMSolverMultistepScheduler", FLOW),
    "dpmpp-sde": ("wan", "DPMSolverMultistepScheduler", FLOW | {"algorithm_type": "sde-dpmsolver++"}),
    "deis": ("wan", "DEISMultistepScheduler", FLOW),
    "sa-solver": ("wan", "SASolverScheduler", FLOW),
    "flow-euler": ("wan", "FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
    "flow-euler-stochastic": (
        "wan", "FlowMatchEulerDiscreteScheduler", {"shift": 3.0, "stochastic_sampling": True},
    ),
    "flow-heun": ("wan", "FlowMatchHeunDiscreteScheduler", {"shift": 3.0}),
    "flow-lcm": ("wan", "FlowMatchLCMScheduler", {"shift": 3.0}),
    "two-experts": ("wan22", None, {}),
    "image": ("wan22_image", None, {}),
    "ltx": ("ltx", None, {}),
    "cogvideox-ddim": ("cogvideox", None, {}),
    "cogvideox-dpm": ("cogvideox", "CogVideoXDPMScheduler", {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_parked_run_goes_on_to_the_same_bits_after_another_job(case: str, tmp_path: Path) -> None:
    name, scheduler, options = CASES[case]
    pipe = pipeline(name)
    if scheduler is not None:
        pipe = with_scheduler(pipe, scheduler, **options)
    alone, other = make(pipe, name, 7), make(pipe, name, 8)
    assert not torch.equal(alone, other)
    state = torch.get_rng_state()
    # two experts: the change of the expert lies before the checkpoint
    with pytest.raises(ParkRequested):
        make(pipe, name, 7, boundary=park_at(4, tmp_path / "kept"))
    assert torch.equal(make(pipe, name, 8), other), "a parked job changed the next one"
    computed: list[int] = []
    resumed = make(
        pipe,
        name,
        7,
        resume=checkpoint.read(tmp_path / "kept"),
        boundary=lambda run: computed.append(run.step),
    )
    assert torch.equal(resumed, alone)
    assert min(computed) == 4, "replayed steps ran the denoiser"
    assert torch.equal(torch.get_rng_state(), state), "torch's own generator was left changed"


def test_a_resumed_run_can_be_parked_again(tmp_path: Path) -> None:
    pipe = pipeline("wan")
    alone = make(pipe, "wan")
    for step in (2, 4):
        before = checkpoint.read(tmp_path / "2") if step == 4 else None
        with pytest.raises(ParkRequested):
            make(pipe, "wan", resume=before, boundary=park_at(step, tmp_path / str(step)))
    assert torch.equal(make(pipe, "wan", resume=checkpoint.read(tmp_path / "4")), alone)


def test_cancel_stops_within_the_step_and_leaves_the_pipeline_as_it_was() -> None:
    pipe = pipeline("wan")
    scheduler_class, forward = type(pipe.scheduler), pipe.transformer.__dict__.get("forward")
    alone = make(pipe, "wan")
    calls: list[int] = []

    def boundary(run: Run) -> None:
        calls.append(run.step)
        if run.step == 2 and not run.first_of_step:
            raise CancelRequested

    with pytest.raises(CancelRequested) as caught:
        make(pipe, "wan", boundary=boundary)
    # two passes a step: cancelled between the two of the third
    assert calls == [0, 0, 1, 1, 2, 2]
    assert type(pipe.scheduler) is scheduler_class
    assert pipe.transformer.__dict__.get("forward") is forward
    assert "latents" not in _locals_of(caught.value), "the traceback still holds the job's tensors"
    assert torch.equal(make(pipe, "wan"), alone)


def _locals_of(error: BaseException) -> set[str]:
    names: set[str] = set()
    trace = error.__traceback__
    while trace is not None:
        if "diffusers" in trace.tb_frame.f_code.co_filename:
            names |= set(trace.tb_frame.f_locals)
        trace = trace.tb_next
    return names


def test_cancel_stops_a_decode_and_gives_no_frames() -> None:
    pipe = pipeline("wan")
    given = arguments("wan", 7) | {"output_type": "pt"}

    def decoding() -> None:
        raise CancelRequested

    with pytest.raises(CancelRequested), Run(pipe, [given["generator"]], decoding=decoding):
        pipe(**given)


def test_a_cache_of_a_cancelled_job_is_not_used_by_the_next() -> None:
    from diffusers import FirstBlockCacheConfig

    pipe = pipeline("wan")
    alone = make(pipe, "wan", 8)

    def boundary(run: Run) -> None:
        if run.step == 3:
            raise CancelRequested

    pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.9))
    try:
        cached = make(pipe, "wan", 8)
        assert not torch.equal(cached, alone), "the cache saved nothing: this test shows nothing"
        with pytest.raises(CancelRequested):
            make(pipe, "wan", 7, boundary=boundary)
        assert torch.equal(make(pipe, "wan", 8), cached)
    finally:
        pipe.transformer.disable_cache()


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("step", [2, 3, 4])
def test_skipped_steps_are_the_same_after_a_resume(order: int, step: int, tmp_path: Path) -> None:
    """Parked before a skipped step (2, 4), whose outputs are in the checkpoint, and before a computed one."""
    pipe = pipeline("wan")
    schedule = Schedule(frozenset({2, 4}), STEPS, order)
    cache = StepCache(schedule)
    whole = make(pipe, "wan", cache=cache)
    assert cache.skipped_passes == 4
    assert not torch.equal(whole, make(pipe, "wan"))
    with pytest.raises(ParkRequested):
        make(pipe, "wan", cache=StepCache(schedule), boundary=park_at(step, tmp_path / "kept"))
    resumed = make(pipe, "wan", cache=StepCache(schedule), resume=checkpoint.read(tmp_path / "kept"))
    assert torch.equal(resumed, whole)


def test_a_checkpoint_of_another_prompt_is_refused(tmp_path: Path) -> None:
    pipe = pipeline("wan")
    with pytest.raises(ParkRequested):
        make(pipe, "wan", boundary=park_at(3, tmp_path / "kept"))
    given = arguments("wan", 7) | {"prompt": "a blue boat"}
    saved = checkpoint.read(tmp_path / "kept")
    with pytest.raises(OtherInputs), Run(pipe, [given["generator"]], resume=saved):
        pipe(**given)


class OwnNoise:
    """Like diffusers' SDE solvers, whose BrownianTree is seeded from nowhere."""

    def step(self, model_output: Any, timestep: Any, sample: Any) -> Any:
        raise NotImplementedError


def test_a_scheduler_with_noise_of_its_own_is_refused() -> None:
    class Pipe:
        scheduler = OwnNoise()

    with pytest.raises(PermanentFailure, match="/scheduler: OwnNoise"), Run(Pipe()):
        pass


def test_a_checkpoint_is_as_large_as_the_solver_s_history(tmp_path: Path) -> None:
    """UniPC of order 2 keeps the sample, the one before and two model outputs; each is written once."""
    pipe = pipeline("wan")
    with pytest.raises(ParkRequested):
        make(pipe, "wan", boundary=park_at(4, tmp_path / "kept"))
    latents = 16 * 2 * 4 * 4 * 4
    assert 4 * latents <= (tmp_path / "kept").stat().st_size < 4 * latents + 80_000


def test_differing_environments_are_told() -> None:
    then = checkpoint.environment("cpu", dtype="float32", batch=1)
    now = then | {"threads": 64, "builds": then["builds"] | {"torch": "1.0"}}
    assert checkpoint.differences(then, then) == []
    lines = checkpoint.differences(then, now)
    assert len(lines) == 2
    assert f"threads: {then['threads']} then, 64 now" in lines
    assert any(line.startswith("builds.torch: ") and line.endswith("'1.0' now") for line in lines)
