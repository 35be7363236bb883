"""Several devices on one sample: every rank runs the same pipeline call, and they share the passes.

Two ways to share. *Guidance split*: of the two passes of a step, with the prompt and without, each of two
ranks computes one and they exchange the results; the same kernels run on the same shapes, so the bits are
those of one device. *Context parallel*: the sequence is split across the ranks inside the denoiser's blocks,
by diffusers' plan for the model (:mod:`jobs.video.sequence_split`).

All ranks or none: before each pass the first rank says go on or stop, having read the control word; a rank
that fails takes the others with it. NCCL would wait for a dead one for ever, so a thread of the first rank
watches the others and aborts what waits for them; a device that even then does not come back ends the
process, and the node's agent takes the slot from there. The first rank alone saves checkpoints, decodes and
publishes.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

from farm.errors import Interrupted, PermanentFailure, TaskFailed
from jobs.video.families import Share
from jobs.video.packing import form_of, zeros_like
from jobs.video.payload import Generation

torch: Any = importlib.import_module("torch")

_LONGEST_HOLD: Final = timedelta(days=7)
"""How long ranks wait for the first one, which the farm may hold; a rank that dies is noticed at once."""
_ENVIRONMENT: Final = {
    # a gang is of one machine, whatever its name resolves to
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    # the watching thread aborts; torch's own would take the whole slot down with it
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
_ABORT_S: Final = 20.0
_RETURN_S: Final = 60.0
"""How long the first rank may need to come out of a pass after the abort: the longest pass and more."""
RANK_MODULE: Final = "jobs.video.gang_child"
LOST_DEVICE: Final = 75
"""Exit status of a first rank whose device did not come back."""
_GO: Final = 1
_STOP: Final = 0


class Dismissed(Interrupted):
    """The first rank needs this one no more."""


class Member:
    """One rank's part in a gang: ``torch.distributed`` is up for as long as it lives."""

    def __init__(self, rank: int, size: int, rendezvous: Path, device: str) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.share: Share | None = None
        """How the sample of the moment is shared."""
        self.meeting = False
        """Whether the ranks need each other now: from a sample's first pass to its last."""
        self._dist: Any = importlib.import_module("torch.distributed")
        self._outputs: dict[str, Any] = {}
        self._meshes: dict[tuple[int, int], Any] = {}
        self._aborting, self._aborted = threading.Lock(), False
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        store = self._dist.FileStore(str(rendezvous), size)
        self._dist.init_process_group(
            "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
            store=store,
            rank=rank,
            world_size=size,
            timeout=_LONGEST_HOLD,
        )

    def begin(self, share: Share) -> None:
        """A sample begins, shared in this way; nothing of the one before it holds, such as its size."""
        self.share = share
        self._outputs.clear()

    def mesh(self, ring: int, ulysses: int) -> Any:
        """All ranks as a mesh of these degrees; made once, since its groups live as long as the gang."""
        shape = (ring, ulysses)
        if shape not in self._meshes:
            self._meshes[shape] = importlib.import_module("torch.distributed.device_mesh").init_device_mesh(
                self.device, shape, mesh_dim_names=("ring", "ulysses")
            )
        return self._meshes[shape]

    def abort(self) -> None:
        """Take every rank's kernel out of its collective; from any thread. What they computed is void.

        All groups at once: a kernel of one may stand behind one of another on the device.
        """
        if self.device != "cuda":
            # a broken connection has told gloo already
            return
        with self._aborting:
            if self._aborted:
                return
            self._aborted = True
            groups = list(importlib.import_module("torch.distributed.distributed_c10d")._world.pg_map)
            threads = [threading.Thread(target=_abort, args=(group,), daemon=True) for group in groups]
            for thread in threads:
                thread.start()
            until = time.monotonic() + _ABORT_S
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Leave the gang. The others have been ended: nothing is waited for that they would have sent."""
        self.meeting = False
        self.abort()
        leaving = threading.Thread(target=_quietly, args=(self._dist.destroy_process_group,), daemon=True)
        leaving.start()
        leaving.join(_RETURN_S)
        if leaving.is_alive():
            _give_up("the gang's groups cannot be left")
        if self.device == "cuda" and self.rank == 0:
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                # an error that stays: every later film in this process would fail of it
                _give_up(f"the device is lost after a gang ({error})")

    def agree(self, check: Callable[[], None]) -> None:
        """Before each pass: the first rank reads the control word, the others hear whether they go on.

        Raises what ``check`` raises in the first rank, and :class:`Dismissed` in the others.
        """
        word = torch.tensor([_GO])
        self.meeting = True
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
            raise PermanentFailure("/gang: this pipeline makes more than two passes in a step; take ulysses")
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


class Gang:
    """The first rank's hold on the others: processes that stay between the tasks of a slot.

    ``module`` is run for each of them, as :mod:`jobs.video.gang_child` is.
    """

    def __init__(self, generation: Generation, folder: Path, module: str = RANK_MODULE) -> None:
        self.size = generation.gpus
        self._module = module
        self._children: list[subprocess.Popen[str]] = []
        self.told: list[dict[str, Any]] = []
        """What each of the others told of itself at the end of its last sample."""
        # read again whenever a group is made: it stays for as long as the gang
        self._rendezvous = rendezvous = folder / f"gang-{os.getpid()}-{time.monotonic_ns()}"
        try:
            for rank in range(1, self.size):
                self._children.append(self._start(rank, rendezvous, generation.device))
            # the group is made only once all are there: who waits for it, waits for ever
            for rank, child in enumerate(self._children, 1):
                ready = self._answer(child)
                if "error" in ready:
                    raise TaskFailed(f"rank {rank} of the gang did not start: {ready['error']}")
            self.member = Member(0, self.size, rendezvous, generation.device)
        except BaseException:
            self._kill()
            raise
        self._over, self._closed = os.pipe()
        self._watcher = threading.Thread(target=self._watch, name="gang", daemon=True)
        self._watcher.start()

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

    def end(self) -> list[dict[str, Any]]:
        """Wait until the others are done; what each tells of itself (``peak_vram`` in bytes, on a GPU).

        Raises :class:`farm.errors.TaskFailed` with what one failed of.
        """
        self.member.meeting = False
        self.told = []
        for rank, child in enumerate(self._children, 1):
            answer = self._answer(child)
            if "error" in answer:
                raise TaskFailed(f"rank {rank} of the gang: {answer['error']}")
            self.told.append(answer)
        return self.told

    def blame(self) -> str | None:
        """Of what another rank has died, if one has; the first rank's own error is only that it is gone."""
        for rank, child in enumerate(self._children, 1):
            with suppress(subprocess.TimeoutExpired):
                # it may be on its way out
                child.wait(1.0)
                return f"rank {rank} of the gang: {self._answer(child).get('error', 'it has ended')}"
        return None

    def close(self) -> None:
        """End the others and leave."""
        os.close(self._closed)
        self._kill()
        self.member.close()
        self._watcher.join()
        os.close(self._over)

    def _watch(self) -> None:
        """Abort the sample of the moment when a rank dies in it."""
        waiting = select.poll()
        waiting.register(self._over)
        # nobody waits for a child while this thread runs: its id stays its own
        watched = [os.pidfd_open(child.pid) for child in self._children if child.returncode is None]
        for descriptor in watched:
            waiting.register(descriptor, select.POLLIN)
        found = [number for number, _ in waiting.poll()]
        for descriptor in watched:
            os.close(descriptor)
        if self._over in found:
            return
        died = time.monotonic()
        self.member.abort()
        alone = select.poll()
        alone.register(self._over)
        while not alone.poll(1000):
            if not self.member.meeting:
                died = time.monotonic()
            elif self.member.device == "cuda" and time.monotonic() - died > _RETURN_S:
                _give_up("a rank of the gang has died, and this one's device does not come back")

    @staticmethod
    def _answer(child: subprocess.Popen[str]) -> dict[str, Any]:
        assert child.stdout is not None
        line = child.stdout.readline()
        answer: dict[str, Any] = (
            json.loads(line) if line else {"error": f"it has died (exit code {child.wait()})"}
        )
        return answer

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
        command = ["-m", self._module, str(rank), str(self.size), str(rendezvous), device]
        return subprocess.Popen(
            [sys.executable, *command, str(torch.get_num_threads())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=Path(__file__).parents[2],
            process_group=0,
            text=True,
        )


def _abort(group: Any) -> None:
    # a group of a mesh in which this rank is alone may have no connection yet
    _quietly(lambda: group._get_backend(torch.device("cuda")).abort())


def _quietly(action: Callable[[], Any]) -> None:
    with suppress(Exception):
        action()


def _give_up(why: str) -> NoReturn:
    # past any error handling: the interpreter's own exit would wait for the device as well
    os.write(2, f"{why}: the slot ends\n".encode())
    os._exit(LOST_DEVICE)


def _tensors(output: Any) -> list[Any]:
    if isinstance(output, torch.Tensor):
        return [output]
    values = output.values() if isinstance(output, Mapping) else output
    return [tensor for value in values for tensor in _tensors(value)] if values is not None else []


def _device(kwargs: Any, args: Any) -> Any:
    return next(value for value in (*kwargs.values(), *args) if isinstance(value, torch.Tensor)).device
