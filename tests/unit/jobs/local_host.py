"""A host in this process: really writes, really verifies, and keeps what engines publish for tests."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.chunks import runs_over
from farm.errors import OutOfSpace, PermanentFailure
from farm.frame_range import FrameRange
from farm.plan import JobPlan, StepPlan
from jobs.engine import StoredArtifact, StoredFrame, TaskContext
from jobs.kind import Asset, ExpandContext
from jobs.registry import kind
from workers.verify import verify


class FileLog:
    """A log in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)

    def write(self, text: str) -> None:
        self._file.write((text if text.endswith("\n") else text + "\n").encode())

    def fileno(self) -> int:
        return self._file.fileno()

    def text(self) -> str:
        """All that was logged."""
        return self.path.read_bytes().decode("utf-8", "replace")


@dataclass
class Published:
    """One published frame."""

    number: int
    files: dict[str, Path]
    started_at: float
    duration_s: float
    quality: dict[str, Any]


@dataclass
class LocalHost:
    """Host of one task after another; ``published`` and ``artifacts`` outlive the tasks."""

    folder: Path
    files: dict[str, Path]
    on_check: Callable[[LocalHost], None] | None = None
    spool_budget: int = 2**30
    published: dict[tuple[str, int], Published] = field(default_factory=dict)
    artifacts: dict[str, tuple[Path, str, dict[str, Any]]] = field(default_factory=dict)
    made_by: dict[str, str] = field(default_factory=dict)
    results: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    phases: list[str] = field(default_factory=list)
    progresses: list[tuple[float, str]] = field(default_factory=list)
    frozen_pids: list[int] = field(default_factory=list)
    warm: str | None = None
    reserved: int = 0
    peak_reserved: int = 0
    checks: int = 0
    step: str = ""
    outputs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    others: dict[str, LocalHost] = field(default_factory=dict)
    """Hosts of the jobs that this one comes after, by their ids."""
    checkpoint: Path | None = None
    previews: list[bytes] = field(default_factory=list)
    examined: dict[Path, str] = field(default_factory=dict)
    """Hashes of files that were checked ahead of their publication."""
    threads: int = 2
    told: list[tuple[float, int, float]] = field(default_factory=list)
    """What engines said when they asked whether to hand the rest on: seconds, frames left, target."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store = self.folder / "store"
        self.store.mkdir(exist_ok=True)
        self.root = self.folder / "assets"
        for path, source in self.files.items():
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        self.root.mkdir(exist_ok=True)
        self.log = FileLog(self.folder / "log")
        self.scratch = self.folder / "scratch" / "0"
        self.scratch.mkdir(parents=True, exist_ok=True)

    def check(self) -> None:
        self.checks += 1
        if self.on_check:
            self.on_check(self)

    def progress(self, fraction: float, note: str = "") -> None:
        assert 0.0 <= fraction <= 1.0
        self.progresses.append((fraction, note))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.phases.append(name)
        yield

    def publish(
        self,
        number: int,
        files: Mapping[str, Path],
        *,
        started_at: float,
        duration_s: float,
        quality: Mapping[str, Any] | None = None,
        peak_vram: int | None = None,
    ) -> None:
        declared = {o["name"]: o for o in self.outputs[self.step]}
        assert set(files) == set(declared)
        kept = {}
        for output, path in files.items():
            assert path.parent == self.scratch
            examined = self.examined.pop(path, None)
            if examined is None:
                verify(path, declared[output])
            kept[output] = self._keep(path)
            assert examined in (None, kept[output].name), "a file was changed after it was examined"
        self.published[self.step, number] = Published(
            number, kept, started_at, duration_s, dict(quality or {})
        )

    def examine(self, number: int, files: Mapping[str, Path]) -> None:
        declared = {o["name"]: o for o in self.outputs[self.step]}
        for output, path in files.items():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            verify(path, declared[output])
            self.examined[path] = digest

    def hand_on(self, frame_s: float, left: int, target_s: float) -> bool:
        self.told.append((frame_s, left, target_s))
        return runs_over([told[0] for told in self.told], left, target_s)

    def _keep(self, path: Path) -> Path:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        target = self.store / digest
        path.rename(target)
        return target

    def publish_artifact(
        self, name: str, path: Path, media_type: str, meta: Mapping[str, Any] | None = None
    ) -> str:
        kept = self._keep(path)
        self.artifacts[name] = (kept, media_type, dict(meta or {}))
        self.made_by[name] = self.step
        return kept.name

    def result(self, data: Mapping[str, Any]) -> None:
        self.results.setdefault(self.step, []).append(dict(data))

    def save(self, path: Path) -> None:
        self.checkpoint = self._keep(path)

    def restore(self) -> Path | None:
        return self.checkpoint

    def preview(self, png: bytes) -> None:
        self.previews.append(png)

    @contextmanager
    def reserve(self, nbytes: int, medium: str, purpose: str = "frame staging") -> Iterator[None]:
        if nbytes > self.spool_budget:
            raise OutOfSpace(f"{nbytes} bytes of {medium} are over the whole budget")
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        try:
            yield
        finally:
            self.reserved -= nbytes

    def asset(self, path: str) -> Path:
        if path not in self.files:
            raise PermanentFailure(f"the job has no asset {path!r}")
        return self.root / path

    def assets(self) -> Path:
        return self.root

    def frames(
        self, step: str, output: str, numbers: FrameRange | None = None, *, job: str | None = None
    ) -> list[StoredFrame]:
        if job is not None:
            return self.others[job].frames(step, output, numbers)
        declared = next(o for o in self.outputs[step] if o["name"] == output)
        wanted = numbers or FrameRange.of(n for s, n in self.published if s == step)
        stored = []
        for number in wanted:
            frame = self.published.get((step, number))
            if frame is None:
                raise PermanentFailure(f"step {step!r} has no frame {number}")
            stored.append(
                StoredFrame(
                    number,
                    output,
                    frame.files[output],
                    declared["width"],
                    declared["height"],
                    declared["format"],
                )
            )
        return stored

    def stored_artifacts(self, step: str) -> list[StoredArtifact]:
        return [
            StoredArtifact(name, path, meta)
            for name, (path, _, meta) in sorted(self.artifacts.items())
            if self.made_by[name] == step
        ]

    def step_results(self, step: str, *, job: str | None = None) -> list[Mapping[str, Any]]:
        if job is not None:
            return self.others[job].step_results(step)
        return list(self.results.get(step, []))

    @contextmanager
    def frozen(self, pids: Sequence[int]) -> Iterator[None]:
        self.frozen_pids = list(pids)
        yield

    def keep_warm(self, *keys: str | None) -> None:
        self.warm = keys[0]

    # driving a whole job

    def plan(self, kind_name: str, spec: dict[str, Any]) -> tuple[dict[str, Any], JobPlan]:
        """Parse and expand a job over this host's assets, as submission does."""
        parsed = kind(kind_name).parse(spec)
        return parsed.model_dump(mode="json"), kind(kind_name).expand(parsed, self.context())

    def context(self) -> ExpandContext:
        """What ``expand`` may look at."""
        return ExpandContext(
            assets={
                path: Asset(path, hashlib.sha256(source.read_bytes()).hexdigest(), source.stat().st_size)
                for path, source in self.files.items()
            }
        )

    def expanded(self, kind_name: str, spec: dict[str, Any], step: StepPlan) -> StepPlan:
        """A deferred step with its tasks, from what the step that it waits for found here."""
        assert step.deferred_on is not None
        chosen, results = kind(kind_name), self.results.get(step.deferred_on, [])
        return chosen.expand_deferred(chosen.parse(spec), step.name, results, self.context())

    def tasks(
        self, spec: dict[str, Any], step: StepPlan, threads: int | None = None
    ) -> Iterator[TaskContext]:
        """The tasks of a step, as a slot would get them; turns this host to each."""
        declared = [dataclasses.asdict(o) for o in step.outputs]
        self.outputs[step.name] = declared
        for index, task in enumerate(step.tasks):
            self.step = step.name
            self.scratch = self.folder / "scratch" / f"{step.name}-{index}"
            self.scratch.mkdir(parents=True, exist_ok=True)
            yield TaskContext(
                task_id=f"task-{index}",
                job_id="job-1",
                step_name=step.name,
                engine=step.engine,
                take=1,
                attempt_number=1,
                frames=task.frames,
                spec=spec,
                step=step.payload,
                payload=task.payload,
                outputs=declared,
                device={"kind": "cpu", "threads": threads or self.threads},
            )

    def run_job(self, kind_name: str, spec: dict[str, Any]) -> None:
        """Run every task of a job with fresh engines; raises what an engine raises."""
        self.run_steps(kind_name, spec, None)

    def run_steps(self, kind_name: str, spec: dict[str, Any], names: Sequence[str] | None) -> None:
        """Run every task of the steps called ``names``, or of all."""
        parsed, plan = self.plan(kind_name, spec)
        for planned in plan.steps:
            if names is not None and planned.name not in names:
                continue
            step = self.expanded(kind_name, parsed, planned) if planned.deferred else planned
            engine = kind(step.engine).create_engine()
            engine.open(self)
            try:
                for task in self.tasks(parsed, step):
                    engine.run(task, self)
                    assert not any(self.scratch.iterdir()), "an engine left files in scratch"
            finally:
                engine.close()


def pids_of(host: LocalHost) -> list[int]:
    """Declared child groups that still run."""
    return [pid for pid in host.frozen_pids if Path(f"/proc/{pid}").exists() and os.getpgid(pid) == pid]
