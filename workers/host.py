"""The host: what a slot gives an engine for one attempt (:class:`jobs.engine.Host`)."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from farm import ledger
from farm.chunks import runs_over
from farm.errors import (
    FencedOff,
    HashMismatch,
    InvalidInput,
    OutOfSpace,
    ParkRequested,
    PermanentFailure,
    TaskFailed,
    UnverifiedFrame,
)
from farm.frame_range import FrameRange
from farm.lifecycle.checkpoint import Owner, save_checkpoint
from farm.records import ArtifactRecord, ClaimedTask, FrameFileRecord, FrameRecord, Split
from jobs.engine import Log, Medium, Phase, StoredArtifact, StoredFrame, TaskContext
from workers import repository
from workers.asset_folder import AssetFolder
from workers.bench import Bench
from workers.disks import local_folder
from workers.frame_desk import FrameDesk
from workers.holding import Obedience
from workers.load_turn import load_turn
from workers.logs import AttemptLog
from workers.patience import patiently
from workers.phases import PhaseClock
from workers.room import Room
from workers.verify import Verified, hashed_and_synced, verify

T = TypeVar("T")
_RESULT_MAX = 1_000_000
_PREVIEW_EVERY_S = 0.25
_PREVIEW_MAX = 8 * 2**20


class SlotHost:
    """One attempt's host. ``assets`` is the job's folder, kept by the runner between tasks of a job."""

    def __init__(
        self, bench: Bench, task: ClaimedTask, desk: FrameDesk, assets: Callable[[], AssetFolder]
    ) -> None:
        self._bench = bench
        self._task = task
        self._desk = desk
        self._assets = assets
        self._clock = PhaseClock(lambda: bench.control.frozen_s(task.serial))
        self._obedience = Obedience(bench.control, task, self._clock)
        # the engines' hot path: no further call in between
        self.check = self._obedience.check
        self.scratch = bench.scratch / task.attempt_id
        self._frozen: tuple[int, ...] = ()
        self.scratch.mkdir(parents=True)
        self._log_file = AttemptLog(bench.settings.logs, task.attempt_id)
        self.log: Log = self._log_file
        self._wanted = FrameRange.parse(task.frames) if task.frames else None
        self._outputs = {str(output["name"]): output for output in task.outputs}
        self._published: set[int] = set()
        self._examined: dict[Path, tuple[str, Verified]] = {}
        """What :meth:`examine` found: the hash of the bytes and what they hold."""
        identity = bench.identity
        self._owner = Owner(task.task_id, task.epoch, task.attempt_id, identity.node_id, identity.slot_id)
        self._room = Room(self._owner, bench.control, self._clock, self.check, self.log, self._write)
        self._fraction: float | None = None
        self._previewed_at = 0.0
        self.warm: list[str] | None = None
        self.found: dict[str, Any] | None = None
        self.artifacts: list[ArtifactRecord] = []
        self.checkpoint = task.checkpoint
        self.peak_vram: int | None = None
        self.split: Split | None = None
        """How to cut the frames that this attempt leaves to others."""
        self._frame_times: list[float] = []
        self._held_before = 0.0

    # --- for the runner ------------------------------------------------------------------------------

    @property
    def clock(self) -> PhaseClock:
        """Where this attempt's time goes."""
        return self._clock

    def alarm(self, error: type[ParkRequested | FencedOff]) -> None:
        """End this attempt at its next check."""
        self._obedience.alarm(error)

    def fenced(self) -> bool:
        """Whether the database has refused this attempt."""
        return self._obedience.fenced()

    def context(self) -> TaskContext:
        """The task as its engine sees it."""
        task = self._task
        return TaskContext(
            task_id=task.task_id,
            job_id=task.job_id,
            step_name=task.step_name,
            engine=task.engine,
            take=task.take,
            attempt_number=task.attempt_number,
            frames=self._wanted,
            spec=task.job_spec,
            step=task.step_payload,
            payload=task.task_payload,
            outputs=task.outputs,
            device=self._bench.identity.device,
        )

    def missing_frames(self) -> list[int]:
        """Frames that the task should have made and has not published."""
        return [number for number in self._wanted or () if number not in self._published]

    def close(self) -> None:
        """Close the log, remove scratch and preview."""
        self._log_file.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._preview_path().unlink(missing_ok=True)

    # --- for the engine ------------------------------------------------------------------------------

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how much is done, 0 to 1; see :meth:`jobs.engine.Host.progress`."""
        self._bench.control.progressed(min(1.0, max(0.0, fraction)))
        if note:
            self._bench.control.note(note)

    def phase(self, name: Phase) -> AbstractContextManager[None]:
        """Time spent inside counts as that phase; loads wait for their turn on the node."""
        return self._load() if name == "load" else self._clock.phase(name)

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
        """Publish a frame; see :meth:`jobs.engine.Host.publish`."""
        if self.fenced():
            raise FencedOff()
        if self._wanted is None or number not in self._wanted:
            raise TaskFailed(f"frame {number} is not one of this task's frames ({self._task.frames})")
        if number in self._published:
            raise TaskFailed(f"frame {number} was published before by this attempt")
        if set(files) != set(self._outputs):
            raise UnverifiedFrame(
                f"frame {number}: outputs are {', '.join(sorted(files)) or 'none'}; "
                f"declared were {', '.join(sorted(self._outputs))}"
            )
        figures = dict(quality or {})
        with self._clock.phase("write"):
            records = []
            for output, path in files.items():
                try:
                    record, flags = self._store_frame_file(output, self._own(path))
                except (UnverifiedFrame, OutOfSpace) as error:
                    raise type(error)(f"frame {number}: {error.message}") from error
                figures |= flags
                records.append(record)
            frame = FrameRecord(number, self._task.take, records, started_at, duration_s, peak_vram, figures)
            self._desk.add(self._task, frame)
        self.peak_vram = max(self.peak_vram or 0, peak_vram or 0) or None
        self._published.add(number)
        self._bench.control.progressed()
        if self.missing_frames() and (full := self._bench.disks.short()):
            # this frame is safe; the next ones wait until there is room
            raise OutOfSpace(full)

    def examine(self, number: int, files: Mapping[str, Path]) -> None:
        """Check files ahead of their publication, from any thread; see :meth:`jobs.engine.Host.examine`."""
        for output, path in files.items():
            if (declared := self._outputs.get(output)) is None:
                # publish names what is declared
                continue
            try:
                self._examined[path] = hashed_and_synced(self._own(path)), verify(path, declared)
            except UnverifiedFrame as error:
                raise UnverifiedFrame(f"frame {number}: {error.message}") from error

    def hand_on(self, frame_s: float, left: int, target_s: float) -> bool:
        """Whether to leave the frames not begun to others; see :meth:`jobs.engine.Host.hand_on`."""
        # a frame that stood still while the farm held the task is not slow
        held = self._clock.held_s()
        frame_s = max(0.0, frame_s - (held - self._held_before))
        self._held_before = held
        self._frame_times.append(frame_s)
        if self.split is None and runs_over(self._frame_times, left, target_s):
            self.split = Split(frame_s, target_s)
            self.log.write(
                f"a frame took {frame_s:.1f} s, so the {left} frames not begun would take "
                f"{frame_s * left:.0f} s where a task should take about {target_s:g} s: "
                "they go on as tasks of their own"
            )
        return self.split is not None

    def publish_artifact(
        self, name: str, path: Path, media_type: str, meta: Mapping[str, Any] | None = None
    ) -> str:
        """Publish a file that is not a frame; see :meth:`jobs.engine.Host.publish_artifact`."""
        if self.fenced():
            raise FencedOff()
        with self._clock.phase("write"):
            sha256, size = self._put(self._own(path))
        self.artifacts.append(ArtifactRecord(name, sha256, size, media_type, dict(meta or {})))
        self._bench.control.progressed()
        return sha256

    def result(self, data: Mapping[str, Any]) -> None:
        """What this task found. Raises :class:`PermanentFailure` for anything that is not JSON under 1 MB."""
        try:
            text = json.dumps(data, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise PermanentFailure(f"the task's result is not JSON: {error}") from error
        if len(text) > _RESULT_MAX:
            raise PermanentFailure(
                f"the task's result has {len(text):,} bytes; at most {_RESULT_MAX:,} are kept"
            )
        self.found = json.loads(text)

    def save(self, path: Path) -> None:
        """Keep this file as the checkpoint; see :meth:`jobs.engine.Host.save`."""
        with self._clock.phase("write"):
            sha256, size = self._put(self._own(path))
            saved = self._room.wait(
                size, "store", lambda conn: save_checkpoint(conn, self._owner, sha256, size)
            )
            if not saved:
                self.alarm(FencedOff)
                raise FencedOff()
        self.checkpoint = sha256
        self._bench.control.progressed()

    def restore(self) -> Path | None:
        """The newest checkpoint; see :meth:`jobs.engine.Host.restore`."""
        if self.checkpoint is None:
            return None
        with self._clock.phase("fetch"):
            folder = AssetFolder(
                self.scratch / "checkpoint", {"checkpoint": self.checkpoint}, self._bench.store
            )
            return folder.file("checkpoint")

    def preview(self, png: bytes) -> None:
        """Show a picture of the work in progress; dropped when they come too fast or are too big."""
        now = time.monotonic()
        if now - self._previewed_at < _PREVIEW_EVERY_S or len(png) > _PREVIEW_MAX:
            return
        if not png.startswith(b"\x89PNG\r\n\x1a\n"):
            raise InvalidInput("a preview is a PNG")
        self._previewed_at = now
        path = self._preview_path()
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.part")
            temporary.write_bytes(png)
            temporary.replace(path)

    @contextlib.contextmanager
    def reserve(self, nbytes: int, medium: Medium, purpose: str = "frame staging") -> Iterator[None]:
        """Hold a buffer in the ledger; see :meth:`jobs.engine.Host.reserve`."""
        buffer_id = self._room.reserve(nbytes, medium, purpose)
        try:
            yield
        finally:
            # when the database is away for long, finish (or the reconciler) releases it with the attempt
            with contextlib.suppress(Exception):
                self._write(lambda conn: ledger.release(conn, buffer_id))

    def asset(self, path: str) -> Path:
        """Read-only file of the job's asset."""
        with self._clock.phase("fetch"):
            return self._assets().file(path)

    def assets(self) -> Path:
        """A read-only folder with every asset of the job."""
        with self._clock.phase("fetch"):
            return self._assets().all()

    def frames(
        self, step: str, output: str, numbers: FrameRange | None = None, *, job: str | None = None
    ) -> list[StoredFrame]:
        """Published frames of another step; see :meth:`jobs.engine.Host.frames`."""
        with self._clock.phase("fetch"):
            source = self._readable(job)
            rows = self._patiently_read(lambda conn: repository.published_files(conn, source, step, output))
            if numbers is not None:
                present = {row.number for row in rows}
                absent = [number for number in numbers if number not in present]
                if absent:
                    shown = ", ".join(map(str, absent[:10]))
                    raise PermanentFailure(
                        f"step {step!r} has no published {output!r} for {len(absent)} frames: {shown}"
                    )
                rows = [row for row in rows if row.number in numbers]
            return [
                StoredFrame(
                    row.number, output, self._local(row.sha256, output), row.width, row.height, row.format
                )
                for row in rows
            ]

    def stored_artifacts(self, step: str) -> list[StoredArtifact]:
        """Artifacts of another step; see :meth:`jobs.engine.Host.stored_artifacts`."""
        with self._clock.phase("fetch"):
            rows = self._patiently_read(
                lambda conn: repository.published_artifacts(conn, self._task.job_id, step)
            )
            return [StoredArtifact(row.name, self._local(row.sha256, row.name), row.meta) for row in rows]

    def step_results(self, step: str, *, job: str | None = None) -> list[Mapping[str, Any]]:
        """What the tasks of an earlier step found."""
        source = self._readable(job)
        found = self._patiently_read(lambda conn: repository.results(conn, source, step))
        return list(found)

    @contextlib.contextmanager
    def frozen(self, pids: Sequence[int]) -> Iterator[None]:
        """Declare child process groups that go with this task; inside another, until this one ends."""
        before, self._frozen = self._frozen, tuple(pids)
        self._bench.control.groups(self._frozen)
        try:
            yield
        finally:
            self._frozen = before
            self._bench.control.groups(before)

    def keep_warm(self, *keys: str | None) -> None:
        """Say all that stays loaded in this slot after the task."""
        self.warm = [key for key in keys if key]

    # --- within --------------------------------------------------------------------------------------

    def _own(self, path: Path) -> Path:
        """Only files of this attempt are published: no link leads out of scratch."""
        if not path.resolve().is_relative_to(self.scratch.resolve()):
            raise PermanentFailure(f"{path} does not lie in the attempt's scratch folder")
        return path

    def _readable(self, job: str | None) -> str:
        """The id of the job to read from: this one, or one that it was submitted after."""
        own = self._task.job_id
        if job is None or job == own:
            return own
        if not self._patiently_read(lambda conn: repository.comes_after(conn, own, job)):
            raise PermanentFailure(f"this job does not come after {job}; name it in `after` to read from it")
        return job

    @contextlib.contextmanager
    def _load(self) -> Iterator[None]:
        with load_turn(lambda: self._room.stand(0.02)), self._clock.phase("load"):
            yield

    def _store_frame_file(self, output: str, path: Path) -> tuple[FrameFileRecord, dict[str, Any]]:
        declared = self._outputs[output]
        if (examined := self._examined.pop(path, None)) is None:
            found = verify(path, declared)
            sha256, size = self._put(path)
        else:
            sha256, found = examined
            try:
                sha256, size = self._put(path, sha256)
            except HashMismatch:
                raise UnverifiedFrame(f"{output}: {path.name} was changed after it was examined") from None
        record = FrameFileRecord(
            output=output,
            sha256=sha256,
            bytes=size,
            width=found.width,
            height=found.height,
            channels=list(declared["channels"]),
            dtype=found.dtype,
            color_space=str(declared["color_space"]),
            format=found.format,
        )
        return record, found.quality

    def _put(self, path: Path, sha256: str | None = None) -> tuple[str, int]:
        if not path.is_file():
            raise TaskFailed(f"{path.name} was not written")
        store = local_folder(self._bench.settings.resolved_store)
        if store is None or store.stat().st_dev != path.stat().st_dev:
            # a file that is moved takes no more room than it has
            self._bench.store.check_space(path.stat().st_size)
        return self._bench.store.put_file(path, sha256)

    def _local(self, sha256: str, output: str) -> Path:
        path = self._bench.store.path(sha256)
        if path is not None:
            return path
        return AssetFolder(self.scratch / "frames" / sha256[:2], {sha256: sha256}, self._bench.store).file(
            sha256
        )

    def _write(self, action: Callable[[sa.Connection], T]) -> T:
        def once() -> T:
            with self._bench.db.write() as conn:
                return action(conn)

        return patiently(once, give_up=self._give_up, what="write")

    def _patiently_read(self, action: Callable[[sa.Connection], T]) -> T:
        def once() -> T:
            with self._bench.db.read() as conn:
                return action(conn)

        return patiently(once, give_up=self._give_up, what="read")

    def _give_up(self) -> bool:
        # raises when the farm wants the attempt to end while the database is away
        self.check()
        return False

    def _preview_path(self) -> Path:
        return self._bench.settings.previews / f"{self._task.task_id}.png"
