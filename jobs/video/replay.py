"""Exact resume by replay, for any pipeline of diffusers that denoises in one loop.

The pipeline is called from its beginning each time. Two things are put under it for the length of the call:

- The scheduler's class is replaced by a subclass (on an instance it would be lost where a pipeline copies
  its scheduler). While the step number is below the checkpoint's, ``step`` returns the saved output instead
  of computing; at the last such step it restores the scheduler's state and the random generators.
- A gate before each denoiser returns zeros of the recorded shapes for replayed steps. Between real steps it
  calls :attr:`Run.boundary`, which may take a snapshot and may raise in order to park or to cancel.

So the conditioning is rebuilt by the pipeline's own code, and everything after the checkpoint is computed
from the same bits as in a run that was never interrupted. Afterwards :class:`Run` leaves the pipeline, and
torch's own random generators, as they were.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final

from farm.errors import PermanentFailure, TaskFailed
from jobs.video.checkpoint import Snapshot
from jobs.video.packing import form_of, zeros_like
from jobs.video.step_cache import StepCache

torch: Any = importlib.import_module("torch")

DENOISERS: Final = ("transformer", "transformer_2", "unet")


class OtherInputs(TaskFailed):
    """The checkpoint was made from other inputs."""

    slug = "other-inputs"
    title = "The checkpoint was made from other inputs"


class Run:
    """One call of a pipeline under watch; use it as a context manager around the call.

    ``generators`` are the random generators of the job: their state is part of a snapshot. ``boundary(run)``
    is called before each real forward pass of a denoiser, ``stepped(index, latents)`` after each real step of
    the first scheduler with the tensor that it gave. ``total`` is known from the first step on. ``spread``
    (model, ordinal within the step, forward, args, kwargs) computes a pass together with other devices.
    """

    def __init__(
        self,
        pipe: Any,
        generators: Sequence[Any] = (),
        *,
        resume: Snapshot | None = None,
        boundary: Callable[[Run], None] = lambda run: None,
        stepped: Callable[[int, Any], None] = lambda index, latents: None,
        decoding: Callable[[], None] = lambda: None,
        cache: StepCache | None = None,
        spread: Callable[[str, int, Callable[..., Any], Any, Any], Any] | None = None,
        same_environment: bool = True,
    ) -> None:
        self._pipe = pipe
        self._generators = list(generators)
        self._resume = resume
        self._boundary = boundary
        self._stepped = stepped
        self._decoding = decoding
        self._cache = cache
        self._spread = spread
        self._strict = same_environment
        self._instances: list[Any] = []
        self._calls: list[int] = []
        self._outputs: list[Any] = []
        self._states: list[dict[str, Any]] = []
        self._rng: dict[str, Any] = {}
        self._forms: dict[str, list[Any]] = dict(resume.forms) if resume else {}
        self._within: dict[str, int] = {}
        self._conditioning = ""
        self._gates: list[_Gate] = []
        self._class: type | None = None
        self._takes_generator = False
        self._global_rng: dict[str, Any] = {}
        self.total = 0

    # --- what a run tells ----------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps done, replayed ones among them."""
        return self._calls[0] if self._calls else 0

    @property
    def first_of_step(self) -> bool:
        """Whether no model has run since the last step."""
        return not any(self._within.values())

    @property
    def conditioning(self) -> str:
        """Hash of what the first forward pass was conditioned on; empty before it."""
        return self._conditioning

    def snapshot(self) -> Snapshot | None:
        """The state after the last step; ``None`` before the first."""
        if not self._outputs:
            return None
        return Snapshot(
            step=self.step,
            calls=list(self._calls),
            outputs=list(self._outputs),
            states=list(self._states),
            rng=dict(self._rng),
            forms={name: list(forms) for name, forms in self._forms.items()},
            cache=self._cache.state(self.step) if self._cache else {},
            conditioning=self._conditioning,
        )

    # --- install and remove --------------------------------------------------------------------------

    def __enter__(self) -> Run:
        scheduler = self._pipe.scheduler
        self._class = type(scheduler)
        refuse_unseeded(self._class)
        self._takes_generator = "generator" in inspect.signature(self._class.step).parameters
        self._global_rng = _get_rng(())
        if self._generators:
            # for noise that is drawn without a generator: it follows the job's seed as well
            torch.manual_seed(self._generators[0].initial_seed())
        try:
            scheduler.__class__ = _watched(self._class, self)
            for name in DENOISERS:
                model = getattr(self._pipe, name, None)
                if model is not None:
                    self._gates.append(_Gate(model, functools.partial(self._forward, name)))
            decoder = getattr(getattr(self._pipe, "vae", None), "decoder", None)
            if decoder is not None:
                self._gates.append(_Gate(decoder, self._decode))
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
        if error is not None:
            _after_interruption(self._pipe)
            # the frames of the pipeline's call hold latents and activations for as long as they live
            drop_frames(error)

    def _remove(self) -> None:
        for instance in (self._pipe.scheduler, *self._instances):
            if self._class is not None and type(instance).__mro__[1:2] == (self._class,):
                instance.__class__ = self._class
        for gate in reversed(self._gates):
            gate.remove()
        self._gates.clear()
        self._instances.clear()
        _set_rng(self._global_rng, ())

    # --- within the pipeline's call ------------------------------------------------------------------

    def _replaying(self) -> bool:
        """Whether the loop is still below the checkpoint: some scheduler has saved steps left."""
        if self._resume is None:
            return False
        done = self._calls + [0] * (len(self._resume.calls) - len(self._calls))
        return any(done[index] < saved for index, saved in enumerate(self._resume.calls))

    def _forward(self, name: str, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        ordinal = self._within.get(name, 0)
        if not self._conditioning:
            self._conditioning = _hash_of(kwargs, args)
            if self._resume is not None and self._strict and self._conditioning != self._resume.conditioning:
                raise OtherInputs()
        if self._replaying():
            self._within[name] = ordinal + 1
            forms = self._forms[name]
            return zeros_like(forms[min(ordinal, len(forms) - 1)], self._device(kwargs, args))
        self._boundary(self)
        self._within[name] = ordinal + 1
        if self._spread is not None:
            shared, own = self._spread, inner

            def inner(*args: Any, **kwargs: Any) -> Any:
                return shared(name, ordinal, own, args, kwargs)

        if self._cache is None:
            output = inner(*args, **kwargs)
        else:
            output = self._cache.forward(f"{name}.{ordinal}", self.step, inner, args, kwargs)
        forms = self._forms.setdefault(name, [])
        if ordinal >= len(forms):
            forms.append(form_of(output))
        return output

    def _decode(self, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        # an image's encoding runs before the loop; only the end of the loop may be cut here
        self._decoding()
        return inner(*args, **kwargs)

    def _device(self, kwargs: Any, args: Any) -> Any:
        return next(value for value in (*kwargs.values(), *args) if isinstance(value, torch.Tensor)).device

    def stepping(self, scheduler: Any, base: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """One call of a scheduler's ``step``: replayed or real."""
        self._within.clear()
        index = self._index(scheduler)
        self._calls[index] += 1
        number = self._calls[index]
        saved = self._resume
        if saved is not None and index < len(saved.calls) and number <= saved.calls[index]:
            if number == saved.calls[index]:
                _set_state(scheduler, saved.states[index])
                if not self._replaying():
                    _set_rng(saved.rng, self._generators)
                    self._restored(saved)
            output = saved.outputs[index]
            self._keep(index, output)
        else:
            if self._takes_generator and kwargs.get("generator") is None and self._generators:
                # some pipelines never pass it on, and the scheduler's noise would come from nowhere
                kwargs = {**kwargs, "generator": self._generators[0]}
            output = base(scheduler, *args, **kwargs)
            self._keep(index, output)
            self._states[index] = _state_of(scheduler)
            self._rng = _get_rng(self._generators)
            if self._cache is not None and index == 0:
                self._cache.commit()
        if index == 0:
            # a video that is made over enters the loop in its middle
            self.total = len(scheduler.timesteps) - (getattr(scheduler, "begin_index", None) or 0)
            if saved is None or number > saved.calls[0]:
                self._stepped(number - 1, _latents(output))
        return output

    def _restored(self, saved: Snapshot) -> None:
        self._states = list(saved.states)
        self._rng = dict(saved.rng)
        if self._cache is not None:
            self._cache.restore(saved.cache)

    def _keep(self, index: int, output: Any) -> None:
        self._outputs[index] = output

    def _index(self, scheduler: Any) -> int:
        for index, instance in enumerate(self._instances):
            if instance is scheduler:
                return index
        self._instances.append(scheduler)
        self._calls.append(0)
        self._outputs.append(None)
        self._states.append({})
        return len(self._instances) - 1


class _Gate:
    """Stands before a module's ``forward`` and is taken away without a trace."""

    def __init__(self, module: Any, through: Callable[[Callable[..., Any], Any, Any], Any]) -> None:
        self._module = module
        self._own = module.__dict__.get("forward")
        inner = module.forward

        @functools.wraps(inner)
        def gate(*args: Any, **kwargs: Any) -> Any:
            return through(inner, args, kwargs)

        self._gate = gate
        module.forward = gate

    def remove(self) -> None:
        """Restore ``forward``, unless somebody else has replaced it since (offloading does, after a run)."""
        if self._module.__dict__.get("forward") is not self._gate:
            return
        if self._own is None:
            del self._module.forward
        else:
            self._module.forward = self._own


def _watched(base: Any, run: Run) -> type:
    """A subclass of the scheduler's class whose ``step`` goes through the run; its signature stays."""
    plain = base.step

    @functools.wraps(plain)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run.stepping(self, plain, args, kwargs)

    # the name stays as well: pipelines look at it, and it is written into configurations
    return type(base.__name__, (base,), {"step": step, "__module__": base.__module__})


def refuse_unseeded(scheduler_class: Any) -> None:
    """Refuse a scheduler with a noise source of its own: neither a seed nor a checkpoint holds it.

    Raises :class:`farm.errors.PermanentFailure`.
    """
    if "BrownianTree" in inspect.getsource(sys.modules[scheduler_class.__module__]):
        raise PermanentFailure(
            f"/scheduler: {scheduler_class.__name__} draws noise that no seed governs; choose another"
        )


def _state_of(scheduler: Any) -> dict[str, Any]:
    """Its state now: lists and dictionaries copied, since ``step`` changes them in place.

    Functions are left out: its construction set them and nothing changes them.
    """
    return {
        key: list(value) if isinstance(value, list) else dict(value) if isinstance(value, dict) else value
        for key, value in vars(scheduler).items()
        if key != "_internal_dict" and not callable(value)
    }


def _set_state(scheduler: Any, state: dict[str, Any]) -> None:
    for key, value in state.items():
        setattr(scheduler, key, list(value) if isinstance(value, list) else value)


def _get_rng(generators: Sequence[Any]) -> dict[str, Any]:
    state: dict[str, Any] = {
        "job": [generator.get_state() for generator in generators],
        "host": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["device"] = torch.cuda.get_rng_state()
    return state


def _set_rng(state: dict[str, Any], generators: Sequence[Any]) -> None:
    for generator, saved in zip(generators, state["job"], strict=True):
        generator.set_state(saved)
    torch.set_rng_state(state["host"])
    if "device" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["device"])


def _latents(output: Any) -> Any:
    """The new sample, which schedulers give first."""
    return output[0]


def _hash_of(kwargs: Any, args: Any) -> str:
    """Hash of the tensors that condition the denoiser: all that is not the latents or the time."""
    digest = hashlib.sha256()
    for name, value in sorted(kwargs.items()):
        if "encoder" in name and isinstance(value, torch.Tensor):
            data = value.detach().to("cpu").contiguous()
            digest.update(f"{name}{tuple(data.shape)}{data.dtype}".encode())
            digest.update(data.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _after_interruption(pipe: Any) -> None:
    """What a pipeline does at the end of its call, and would not do after an exception."""
    for name in DENOISERS:
        model = getattr(pipe, name, None)
        registry = getattr(model, "_diffusers_hook", None)
        if registry is not None:
            # a cache that outlived its job would be used by the next one
            registry.reset_stateful_hooks(recurse=True)
    vae: Any = getattr(pipe, "vae", None)
    if hasattr(vae, "clear_cache"):
        vae.clear_cache()
    pipe.maybe_free_model_hooks()


def drop_frames(error: BaseException) -> None:
    """Clear the local variables of the frames that ``error`` and its causes passed through."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if link.__traceback__ is not None:
            traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
