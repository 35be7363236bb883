"""The engine of ``render``: keeps one renderer's child open per scene and feeds it frame after frame.

While a finished frame is verified and published, the child already renders the next one.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from farm.errors import (
    DeviceUnavailable,
    EscapedPath,
    ParkRequested,
    PermanentFailure,
    TaskFailed,
    TimedOut,
)
from farm.frame_range import FrameRange
from jobs.engine import Host, TaskContext
from jobs.render.child_process import Child, ChildDied
from jobs.render.mitsuba.variants import Proof, choose
from jobs.render.sandbox import Room, confinement
from jobs.render.scene_paths import check_scene
from jobs.render.spec import Spec

_POLL_S: Final = 0.05
_MEMORY_EVERY_S: Final = 0.5
PARK_PATIENCE_S: Final = 5.0
"""A frame that is nearly done when the slot is wanted back gets this long; then its pixels are dropped."""
_FOLDER: Final = "stillframe-render-"


@dataclass(slots=True)
class _Open:
    """A child with its scene loaded."""

    child: Child
    key: str
    facts: dict[str, Any]
    limit: int
    asked: int = 0
    """Answers that the child still owes; a child that owes some belongs to the task that asked."""


@dataclass(slots=True)
class Clock:
    """Time that counts against a frame's limit: holding by the farm does not."""

    limit: float
    left: float = field(init=False)
    seen: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.left = self.limit

    def skip(self) -> None:
        """Forget the time since the last look."""
        self.seen = time.monotonic()

    def spend(self) -> bool:
        """Count the time since the last look; whether the limit is passed."""
        now = time.monotonic()
        self.left -= now - self.seen
        self.seen = now
        return self.left < 0


class RenderEngine:
    """Runs render tasks; Mitsuba is always in a child."""

    def __init__(self) -> None:
        self._open: _Open | None = None

    def open(self, host: Host) -> None:
        """Remove what a killed slot left behind, and find out how children are confined here."""
        _remove_stale(host.scratch.parent)
        host.log.write(f"children are confined by {confinement().describe()}")

    def close(self) -> None:
        """End the child."""
        held, self._open = self._open, None
        if held is not None:
            held.child.end()
            shutil.rmtree(held.child.room.output, ignore_errors=True)

    def run(self, task: TaskContext, host: Host) -> None:
        """Render and publish the frames of one task."""
        spec = Spec.model_validate(dict(task.spec))
        numbers = list(task.frames or ())
        key = str(task.step.get("warm_key") or task.job_id)
        try:
            held = self._warm(key, host) or self._load(key, spec, task, host)
            host.keep_warm(key)
            with host.frozen([held.child.pid]):
                self._render(held, spec, numbers, task, host)
        except BaseException as error:
            # whatever the child is still doing belongs to a task that is over
            idle = self._open is not None and self._open.child.alive() and self._open.asked == 0
            if not (idle and isinstance(error, ParkRequested | PermanentFailure)):
                self._drop()
            raise

    def _warm(self, key: str, host: Host) -> _Open | None:
        held = self._open
        if held is not None and held.key == key and held.child.alive():
            host.log.write("the scene is still loaded")
            return held
        self._drop()
        return None

    def _drop(self) -> None:
        held, self._open = self._open, None
        if held is not None:
            held.child.end(politely=False)
            shutil.rmtree(held.child.room.output, ignore_errors=True)

    def _load(self, key: str, spec: Spec, task: TaskContext, host: Host) -> _Open:
        with host.phase("fetch"):
            root = host.assets()
            links = _links(root, check_scene(root, spec.scene, _owner(host)))
        with host.phase("load"):
            proof = choose(spec, str(task.device.get("kind", "cpu")))
            threads = int(task.device.get("threads") or len(os.sched_getaffinity(0)))
            limit = spec.memory_limit or psutil.virtual_memory().total * 3 // 4
            folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-", dir=host.scratch.parent))
            room = Room(root, folder, links, cuda=spec.device == "cuda")
            child = Child("jobs.render.mitsuba.child", (), room, _environment(proof, spec, threads))
            held = _Open(child, key, {}, limit)
            self._open = held
            held.asked += 1
            child.send(
                op="load",
                spec=spec.model_dump(mode="json"),
                variant=proof.variant,
                threads=threads,
                root=str(child.inputs),
                scratch=str(child.output),
                memory=None if spec.device == "cuda" else limit,
            )
            with host.frozen([child.pid]):
                clock = Clock(spec.frame_timeout_s)
                answer = self._wait(held, ("loaded",), f"loading {spec.scene}", clock, host)
        held.facts = {
            **{k: v for k, v in answer.items() if k not in {"event", "seconds"}},
            "load_s": round(float(answer["seconds"]), 4),
            "threads": threads,
            "confinement": held.child.confinement.describe(),
            "reason": proof.reason,
        }
        host.log.write(
            f"{spec.scene} loaded in {answer['seconds']:.2f} s: Mitsuba {answer['mitsuba']} {proof.variant} "
            f"({proof.reason}), {threads} threads, {answer['samples']} samples, "
            f"child confined by {held.facts['confinement']}"
        )
        return held

    def _render(self, held: _Open, spec: Spec, numbers: list[int], task: TaskContext, host: Host) -> None:
        staged = sum(
            o["width"] * o["height"] * len(o["channels"]) * _ITEM_SIZE[o["dtype"]] for o in task.outputs
        )
        width, height = spec.resolution
        with host.reserve(2 * staged + 4096, "spool", "frame staging"), host.phase("work"):
            clock = Clock(spec.frame_timeout_s)
            waiting: dict[str, Any] | None = None
            park: ParkRequested | None = None
            if numbers:
                self._ask(held, numbers[0])
            for index, number in enumerate(numbers):
                share = (index / len(numbers), 1 / len(numbers))
                try:
                    waiting = self._wait(
                        held, ("frame",), f"frame {number}", clock, host, number=number, share=share
                    )
                except ParkRequested as request:
                    park = request
                    waiting = self._finish_soon(held, number, host)
                    if waiting is None:
                        raise
                clock = Clock(spec.frame_timeout_s)
                if park is None and index + 1 < len(numbers):
                    self._ask(held, numbers[index + 1])
                self._publish(held, waiting, number, host)
                host.progress((index + 1) / len(numbers), f"frame {number}, {width}x{height}")
                if park is not None:
                    raise park
            host.result(self._found(held, spec, task, host))

    def _ask(self, held: _Open, number: int) -> None:
        held.asked += 1
        held.child.send(op="frame", number=number, folder=str(held.child.output))

    def _publish(self, held: _Open, answer: Mapping[str, Any], number: int, host: Host) -> None:
        files: dict[str, Path] = {}
        for output, name in dict(answer["files"]).items():
            made = held.child.room.output / Path(str(name)).name
            files[str(output)] = take_file(made, host.scratch, f"frame {number}: {output}")
        with host.phase("write"):
            host.publish(
                number,
                files,
                started_at=float(answer["started_at"]),
                duration_s=float(answer["seconds"]),
                quality={**dict(answer.get("quality") or {}), "peak_rss": answer.get("peak_rss")},
            )
        host.log.write(f"frame {number}: {float(answer['seconds']):.2f} s")

    def _finish_soon(self, held: _Open, number: int, host: Host) -> dict[str, Any] | None:
        """The frame in work, if it is done within the patience that a parked slot has."""
        deadline = time.monotonic() + PARK_PATIENCE_S
        while time.monotonic() < deadline:
            answer = held.child.receive(_POLL_S, host.log)
            if answer and answer["event"] == "frame" and answer["number"] == number:
                held.asked -= 1
                return answer
            if answer and answer["event"] == "error":
                return None
        return None

    def _found(self, held: _Open, spec: Spec, task: TaskContext, host: Host) -> dict[str, Any]:
        """What the task found: the exact camera of every frame of its chunk, and how it was rendered."""
        chunk = task.payload.get("frames")
        wanted = list(FrameRange.parse(str(chunk))) if chunk else list(task.frames or ())
        held.asked += 1
        held.child.send(op="poses", numbers=wanted)
        answer = self._wait(held, ("poses",), "reading the cameras", Clock(60.0), host)
        return {"convention": "opengl", "cameras": answer["cameras"], "device": held.facts}

    def _wait(
        self,
        held: _Open,
        events: tuple[str, ...],
        what: str,
        clock: Clock,
        host: Host,
        *,
        number: int | None = None,
        share: tuple[float, float] = (0.0, 0.0),
    ) -> dict[str, Any]:
        """The next of ``events``; checks the farm's wishes, the clock and the child's memory meanwhile."""
        looked = time.monotonic()
        while True:
            clock.spend()
            host.check()
            clock.skip()
            try:
                answer = held.child.receive(_POLL_S, host.log)
            except ChildDied as error:
                if error.message.endswith("SIGKILL"):
                    raise TaskFailed(f"{what}: {error.message} (perhaps out of memory)") from None
                raise TaskFailed(f"{what}: {error.message}") from None
            # a child that talks all the time is timed as well as a silent one
            waiting = answer is None or answer["event"] == "progress"
            if clock.spend() and waiting:
                raise TimedOut(
                    f"{what} took longer than {clock.limit:g} s; raise frame_timeout_s or lower samples"
                )
            if waiting and time.monotonic() - looked > _MEMORY_EVERY_S:
                looked = time.monotonic()
                self._watch_memory(held, what)
            if answer is None:
                continue
            if answer["event"] == "progress":
                host.progress(share[0] + share[1] * float(answer["fraction"]), what)
            elif answer["event"] == "error":
                held.asked -= 1
                raise _error(answer, what, held)
            elif answer["event"] in events and (number is None or answer.get("number") == number):
                held.asked -= 1
                return answer
            else:
                raise TaskFailed(f"{what}: the renderer answered {json.dumps(answer)[:200]} out of turn")

    def _watch_memory(self, held: _Open, what: str) -> None:
        used = held.child.resident()
        if used > held.limit:
            raise TaskFailed(
                f"{what}: the renderer used {used / 2**30:.2f} GiB, over its limit of "
                f"{held.limit / 2**30:.2f} GiB; raise memory_limit or make the scene smaller"
            )


_ITEM_SIZE: Final = {"uint8": 1, "uint16": 2, "float16": 2, "float32": 4}
_ERRORS: Final[dict[str, type[TaskFailed]]] = {
    "permanent": PermanentFailure,
    "escaped": EscapedPath,
    "device": DeviceUnavailable,
    "not_installed": TaskFailed,
}


def take_file(made: Path, scratch: Path, what: str) -> Path:
    """Move a file out of a child's folder into ``scratch``.

    The child reads untrusted scenes: what is no plain file of its own (a link, a device, a second name of
    another file) is refused with :class:`farm.errors.TaskFailed`.
    """
    target = scratch / made.name
    try:
        info = made.lstat()
        if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
            raise TaskFailed(f"{what} is not a plain file")
        made.rename(target)
    except FileNotFoundError:
        raise TaskFailed(f"{what} was not written by the renderer") from None
    return target


def _error(answer: Mapping[str, Any], what: str, held: _Open) -> TaskFailed:
    """The farm's error for a child's; the child's own folders are taken out of the words."""
    words = str(answer.get("message", ""))
    for folder in {str(held.child.inputs), str(held.child.room.inputs)}:
        words = words.replace(f"{folder}/", "")
    if answer.get("kind") == "memory":
        return TaskFailed(f"{what}: out of memory (limit {held.limit / 2**30:.2f} GiB): {words}")
    kind = _ERRORS.get(str(answer.get("kind")), TaskFailed)
    return kind(words if words.startswith(what) else f"{what}: {words}")


def _environment(proof: Proof, spec: Spec, threads: int) -> dict[str, str]:
    """What a child is told; the slot's own environment stays with the slot."""
    env = {**dict(proof.env), "OMP_NUM_THREADS": str(threads), "NANOTHREAD_NUM_THREADS": str(threads)}
    if spec.device == "cuda":
        for name in (
            "CUDA_VISIBLE_DEVICES",
            "CUDA_DEVICE_ORDER",
            "DRJIT_LIBCUDA_PATH",
            "DRJIT_LIBOPTIX_PATH",
        ):
            if name in os.environ:
                env[name] = os.environ[name]
    return env


def _owner(host: Host) -> Any:
    def owner(job_path: str) -> Path | None:
        try:
            return host.asset(job_path)
        except PermanentFailure:
            return None

    return owner


def _links(root: Path, used: set[str]) -> dict[str, Path]:
    """Real files behind links, where the farm laid the assets out as links to its store."""
    real = {name: (root / name).resolve() for name in used}
    inside = root.resolve()
    return real if any(not path.is_relative_to(inside) for path in real.values()) else {}


def _remove_stale(folder: Path) -> None:
    """Remove the folders of children whose slot has died."""
    for path in folder.glob(f"{_FOLDER}*-*"):
        owner = path.name.removeprefix(_FOLDER).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def create() -> RenderEngine:
    """A fresh engine."""
    return RenderEngine()
