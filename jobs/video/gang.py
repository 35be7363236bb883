"""Several devices on one sample: every rank runs the same pipeline call, and they share the passes.

Two ways to share. *Guidance split*: of the two passes of a step, with the prompt and without, each of two
ranks computes one and they exchange the results; the same kernels run on the same shapes, so the bits are
those of one device. *Context parallel*: the sequence is split across the ranks inside the denoiser's blocks,
by diffusers' plan for the model.

All ranks or none: before each pass the first rank says go on or stop, having read the control word; a rank
that fails takes the others with it. The first rank alone saves checkpoints, decodes and publishes.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from farm.errors import Interrupted, PermanentFailure, TaskFailed
from jobs.video.packing import form_of, zeros_like
from jobs.video.payload import Generation

torch: Any = importlib.import_module("torch")

_LONGEST_HOLD: Final = timedelta(days=7)
"""How long ranks wait for the first one, which the farm may hold; a rank that dies is noticed at once."""
_GO: Final = 1
_STOP: Final = 0


class Dismissed(Interrupted):
    """The first rank needs this one no more."""


class Member:
    """One rank's part in a gang: ``torch.distributed`` is up for as long as it lives."""

    def __init__(self, rank: int, size: int, rendezvous: Path, device: str) -> None:
        self.rank, self.size = rank, size
        self._dist: Any = importlib.import_module("torch.distributed")
        self._outputs: dict[str, Any] = {}
        store = self._dist.FileStore(str(rendezvous), size)
        self._dist.init_process_group(
            "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
            store=store,
            rank=rank,
            world_size=size,
            timeout=_LONGEST_HOLD,
        )

    def close(self) -> None:
        """Leave the gang."""
        with suppress(Exception):
            self._dist.destroy_process_group()

    def agree(self, check: Callable[[], None]) -> None:
        """Before each pass: the first rank reads the control word, the others hear whether they go on.

        Raises what ``check`` raises in the first rank, and :class:`Dismissed` in the others.
        """
        word = torch.tensor([_GO])
        if self.rank == 0:
            try:
                check()
            except BaseException:
                word[0] = _STOP
                self._dist.broadcast(word, 0)
                raise
            self._dist.broadcast(word, 0)
            return
        self._dist.broadcast(word, 0)
        if int(word[0]) == _STOP:
            raise Dismissed

    def forward(self, name: str, ordinal: int, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The guidance split of a step's two passes: rank 0 computes the first, rank 1 the second.

        A pipeline uses the first pass's result only after the second: what stands in for it until then is
        filled in place. The first time each rank computes both, and so learns the form of the output.
        """
        if ordinal > 1:
            raise PermanentFailure("/guidance_split: this pipeline makes more than two passes in a step")
        known = f"{name}.form" in self._outputs
        if ordinal == 0:
            if self.rank == 0 or not known:
                out = inner(*args, **kwargs)
                self._outputs[f"{name}.form"] = form_of(out)
            else:
                out = zeros_like(self._outputs[f"{name}.form"], _device(kwargs, args))
            self._outputs[name] = out
            return out
        first = self._outputs.pop(name)
        if self.rank == 1:
            second = inner(*args, **kwargs)
        else:
            second = zeros_like(self._outputs[f"{name}.form"], _device(kwargs, args))
        self._exchange(first, 0)
        self._exchange(second, 1)
        return second

    def _exchange(self, output: Any, source: int) -> None:
        """Every rank has what ``source`` computed, in the tensors of ``output`` themselves."""
        for tensor in _tensors(output):
            flat = tensor if tensor.is_contiguous() else tensor.contiguous()
            self._dist.broadcast(flat, source)
            if flat is not tensor and self.rank != source:
                tensor.copy_(flat)


def check_split(generation: Generation) -> None:
    """Raises :class:`farm.errors.PermanentFailure` where there are not two passes to share."""
    record = generation.model.record()
    if generation.gpus == 1:
        return
    if generation.guidance_split and (not record.guidance_split or generation.gpus != 2):
        raise PermanentFailure(f"/guidance_split: {record.title} on two GPUs only; leave it out")
    if generation.guidance_split and generation.guidance <= 1:
        raise PermanentFailure(
            f"/guidance_split: guidance {generation.guidance:g} makes one pass a step, and there is nothing "
            "to share; set guidance over 1, or gpus to 1"
        )
    if not generation.guidance_split and not record.context_parallel:
        raise PermanentFailure(f"/gpus: {record.title} cannot split its sequence; set gpus to 1")


def enable_context_parallel(denoisers: list[Any], size: int) -> None:
    """Split the sequence of each denoiser over all ranks, by heads (Ulysses) where they divide evenly."""
    diffusers = importlib.import_module("diffusers")
    for denoiser in denoisers:
        heads = int(getattr(denoiser.config, "num_attention_heads", 0))
        shares = {"ulysses_degree": size} if heads % size == 0 else {"ring_degree": size}
        if getattr(denoiser, "_parallel_config", None) is None:
            if not torch.cuda.is_available():
                # diffusers looks for an accelerator to count; the plan itself runs on CPUs just as well
                denoiser._resolve_parallel_config = functools.partial(_mesh_of_cpus, denoiser)
            try:
                denoiser.enable_parallelism(config=diffusers.ContextParallelConfig(**shares))
            except (ValueError, RuntimeError, AttributeError) as error:
                raise PermanentFailure(
                    f"/gpus: {type(denoiser).__name__} cannot be split: {error}"
                ) from error


def _mesh_of_cpus(denoiser: Any, config: Any) -> Any:
    dist = importlib.import_module("torch.distributed")
    parallel = importlib.import_module("diffusers.models._modeling_parallel").ParallelConfig
    mesh = importlib.import_module("torch.distributed.device_mesh").init_device_mesh(
        "cpu", config.mesh_shape, mesh_dim_names=config.mesh_dim_names
    )
    whole = parallel(context_parallel_config=config)
    whole.setup(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), mesh=mesh)
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


class Gang:
    """The first rank's hold on the others: processes that stay between the tasks of a slot."""

    def __init__(self, generation: Generation, folder: Path) -> None:
        self.size = generation.gpus
        self._children: list[subprocess.Popen[str]] = []
        # read again whenever a group is made: it stays for as long as the gang
        self._rendezvous = rendezvous = folder / f"gang-{os.getpid()}-{time.monotonic_ns()}"
        try:
            for rank in range(1, self.size):
                self._children.append(self._start(rank, rendezvous, generation.device))
            self.member = Member(0, self.size, rendezvous, generation.device)
        except BaseException:
            self._kill()
            raise

    @property
    def pids(self) -> list[int]:
        """The other ranks' process ids, each a group of its own."""
        return [child.pid for child in self._children]

    def alive(self) -> bool:
        """Whether all ranks live."""
        return all(child.poll() is None for child in self._children)

    def begin(self, request: Mapping[str, Any]) -> None:
        """Let the other ranks begin the same sample."""
        for child in self._children:
            assert child.stdin is not None
            try:
                child.stdin.write(json.dumps(request) + "\n")
                child.stdin.flush()
            except OSError as error:
                raise TaskFailed(f"a rank of the gang has died (exit code {child.poll()})") from error

    def end(self) -> None:
        """Wait until the others are done. Raises :class:`farm.errors.TaskFailed` with what one failed of."""
        for rank, child in enumerate(self._children, 1):
            assert child.stdout is not None
            line = child.stdout.readline()
            answer = json.loads(line) if line else {"error": f"it has died (exit code {child.wait()})"}
            if "error" in answer:
                raise TaskFailed(f"rank {rank} of the gang: {answer['error']}")

    def close(self) -> None:
        """End the others and leave."""
        self._kill()
        self.member.close()

    def _kill(self) -> None:
        self._rendezvous.unlink(missing_ok=True)
        for child in self._children:
            child.kill()
        for child in self._children:
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()

    def _start(self, rank: int, rendezvous: Path, device: str) -> subprocess.Popen[str]:
        environment = dict(os.environ)
        if device == "cuda":
            owned = os.environ.get("CUDA_VISIBLE_DEVICES")
            devices = (
                owned.split(",") if owned else [str(index) for index in range(torch.cuda.device_count())]
            )
            if len(devices) < self.size:
                raise PermanentFailure(
                    f"/gpus: {self.size} were asked for, and this slot owns {len(devices)}"
                )
            environment["CUDA_VISIBLE_DEVICES"] = devices[rank]
        command = ["-m", "jobs.video.gang_child", str(rank), str(self.size), str(rendezvous), device]
        return subprocess.Popen(
            [sys.executable, *command, str(torch.get_num_threads())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=Path(__file__).parents[2],
            process_group=0,
            text=True,
        )


def _tensors(output: Any) -> list[Any]:
    if isinstance(output, torch.Tensor):
        return [output]
    values = output.values() if isinstance(output, Mapping) else output
    return [tensor for value in values for tensor in _tensors(value)] if values is not None else []


def _device(kwargs: Any, args: Any) -> Any:
    return next(value for value in (*kwargs.values(), *args) if isinstance(value, torch.Tensor)).device
