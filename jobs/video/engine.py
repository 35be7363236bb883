"""The engine of ``video``: one sample at a time, from its prompt to its published frames."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.errors import DeviceUnavailable, Interrupted, PermanentFailure, TaskFailed
from jobs.engine import Host, TaskContext
from jobs.video import caching, calls, checkpoint, gang_child, gang_choice, loras, payload, preview, speed
from jobs.video.attention import Attention
from jobs.video.checkpoint import Snapshot
from jobs.video.frames_out import FramesOut
from jobs.video.gang import RANK_MODULE, Dismissed, Gang, Member
from jobs.video.inputs import read_inputs
from jobs.video.loop import DENOISED, Loop
from jobs.video.memory import explained
from jobs.video.payload import OUTPUT, Generation
from jobs.video.pipelines import Loaded, quiet_libraries
from jobs.video.prompts import PromptCache, refuse_long
from jobs.video.replay import OtherInputs, Run
from jobs.video.residency import Residency
from jobs.video.sequence_split import disable_context_parallel, enable_context_parallel
from jobs.video.watch import check_frames

torch: Any = importlib.import_module("torch")


@dataclass(slots=True)
class _Film:
    """One film in the making."""

    host: Host
    generation: Generation
    environment: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    stage: list[str] = field(default_factory=lambda: ["encode"])
    gang: Member | None = None
    began: float = field(default_factory=time.perf_counter)


class VideoEngine:
    """Keeps models, prompt embeddings and the way out for frames between tasks.

    ``rank_module`` is what the other ranks of a gang run: it must load models as ``residency`` does.
    """

    def __init__(self, residency: Residency | None = None, rank_module: str = RANK_MODULE) -> None:
        self.residency = residency or Residency()
        self._rank_module = rank_module
        self.prompts = PromptCache()
        self.attention = Attention()
        self._out: FramesOut | None = None
        self._gang: Gang | None = None

    def open(self, host: Host) -> None:
        """Say what torch works with here, and look at no hub: what is not in a model's folder is missing."""
        os.environ["HF_HUB_OFFLINE"] = "1"
        quiet_libraries()
        host.log.write(f"torch {torch.__version__}, {torch.get_num_threads()} threads")

    def close(self) -> None:
        """Release models, memory and children."""
        self._end_gang()
        if self._out is not None:
            self._out.close()
            self._out = None
        self.residency.clear()

    def run(self, task: TaskContext, host: Host) -> None:
        """Make the sample of a task and publish its frames."""
        generation = payload.read(task)
        _check_device(generation, task)
        gang_choice.check(generation)
        if generation.device == "cpu" and (threads := task.device.get("threads")):
            # more threads than the slot owns only take turns; and their number is part of the bits
            torch.set_num_threads(int(threads))
        began = time.perf_counter()
        film = _Film(host, generation, began=began)
        loaded = self.residency.get(generation, lambda: host.phase("load"))
        # the others that are still held, too: a slot is warm for each of them
        host.keep_warm(loaded.key, *(key for key in self.residency.keys if key != loaded.key))
        film.facts["load_s"] = round(time.perf_counter() - began, 3)
        out = self._out = self._out or FramesOut(int(task.device.get("threads") or os.cpu_count() or 1))
        ring = out.prepare(generation.width, generation.height, generation.bits, loaded.device)
        gang = self._gang_for(generation, host)
        with (
            host.phase("work"),
            host.reserve(ring, "pinned" if loaded.device.type == "cuda" else "shm", "frame staging"),
            self._weights(loaded, generation, host),
            host.frozen([*out.pids, *(gang.pids if gang else [])]),
            explained(generation, film.stage, loaded.nbytes),
        ):
            frames = self._sample(film, loaded) if gang is None else self._together(film, loaded, gang)
            self._write(film, task, out, frames)

    def follow(self, generation: Generation, host: Host, member: Member) -> dict[str, Any]:
        """Take part in a sample as a rank of a gang other than the first; its frames are the first one's.

        Returns what the job's record tells of this rank.
        """
        loaded = self.residency.get(generation, contextlib.nullcontext)
        with contextlib.suppress(Dismissed), explained(generation, ["denoise"], loaded.nbytes):
            self._sample(_Film(host, generation, gang=member), loaded)
        return {"peak_vram": _peak(loaded.device)}

    # --- one film ------------------------------------------------------------------------------------

    @staticmethod
    def _weights(
        loaded: Loaded, generation: Generation, host: Host
    ) -> contextlib.AbstractContextManager[None]:
        """The ledger's buffer of the model on its devices; host memory is not in the ledger."""
        if loaded.device.type != "cuda" or generation.offload != "none":
            return contextlib.nullcontext()
        return host.reserve(loaded.nbytes * generation.gpus, "vram", "weights")

    def _gang_for(self, generation: Generation, host: Host) -> Gang | None:
        """The other ranks that a job needs: those that are there, or new ones."""
        if self._gang is not None and (self._gang.size != generation.gpus or not self._gang.alive()):
            self._end_gang()
        if generation.gpus > 1 and self._gang is None:
            self._gang = Gang(generation, host.scratch.parent, self._rank_module)
        return self._gang

    def _together(self, film: _Film, loaded: Loaded, gang: Gang) -> Any:
        """The sample's frames, as the first rank of a gang."""
        film.gang = gang.member
        try:
            gang.begin(gang_child.request(film.host, film.generation, film.host.restore()))
            try:
                frames = self._sample(film, loaded)
            except Interrupted:
                # said to every rank before the pass: they have stopped as well, and stay
                gang.end()
                raise
            film.facts["gang"]["peak_vram_of_others"] = [told.get("peak_vram") for told in gang.end()]
        except Interrupted:
            raise
        except BaseException as error:
            blamed = gang.blame()
            # the others would wait for this one: all or none
            self._end_gang()
            if blamed is not None and not isinstance(error, TaskFailed):
                raise TaskFailed(blamed) from error
            raise
        return frames

    def _end_gang(self) -> None:
        gang, self._gang = self._gang, None
        if gang is not None:
            gang.close()

    def _sample(self, film: _Film, loaded: Loaded) -> Any:
        host, generation = film.host, film.generation
        if loaded.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        pictures = read_inputs(generation, host)
        files = [host.asset(lora.path) for lora in generation.loras]
        view = loaded.view(generation)
        refuse_long(view, generation)
        self.prompts.install(view, f"{generation.model.digest}:{generation.dtype}")
        denoisers = loaded.denoisers(generation)
        try:
            with loras.applied(view, generation, files), caching.enabled(view, denoisers, generation):
                dtype = getattr(torch, generation.dtype)
                ran = self.attention.use(generation.attention, denoisers, loaded.device, dtype)
                film.facts |= {"attention": ran, "compiled": speed.prepare(loaded, generation, denoisers)}
                share = self._share(film, loaded, denoisers)
                film.environment = checkpoint.environment(
                    loaded.device,
                    dtype=generation.dtype,
                    quantisation=generation.quantisation,
                    attention=ran,
                    compiled=film.facts["compiled"],
                    batch=1,
                    gpus=generation.gpus,
                    gang=share,
                )
                if speed.needs_warm_up(loaded, film.facts["compiled"]):
                    self._warm_up(film, loaded, pictures)
                frames = self._frames(film, loaded, view, denoisers, pictures)
        finally:
            disable_context_parallel(denoisers)
            self.attention.reset(denoisers)
        return frames

    @staticmethod
    def _share(film: _Film, loaded: Loaded, denoisers: list[Any]) -> str | None:
        """Set how the gang shares the film, with the reason in the job's record."""
        member = film.gang
        if member is None:
            return None
        gpu = torch.cuda.get_device_name(loaded.device) if loaded.device.type == "cuda" else "cpu"
        choice = gang_choice.choose(film.generation, denoisers, gpu)
        member.begin(choice.share)
        film.facts["gang"] = {"gpus": member.size, "share": choice.share, "why": choice.why}
        if choice.share != "guidance":
            enable_context_parallel(denoisers, member.mesh(choice.ring, choice.ulysses))
        return choice.share

    def _warm_up(self, film: _Film, loaded: Loaded, pictures: dict[str, Any]) -> None:
        """Compile at the film's shape, by two steps of it that nobody sees: loading, not work."""
        host, generation, gang = film.host, film.generation, film.gang
        # made over from a video, a film has only this share of its steps
        steps = math.ceil(2 / (generation.strength or 1.0))
        short = generation.model_copy(update={"steps": steps, "cache": None})
        view = loaded.view(short)
        self.prompts.install(view, f"{generation.model.digest}:{generation.dtype}")
        generator = torch.Generator().manual_seed(0)
        given = calls.arguments(view, short, generator, pictures) | {"output_type": "latent"}
        began = time.perf_counter()

        def boundary(run: Run) -> None:
            if gang is None:
                host.check()
            else:
                gang.agree(host.check)

        with host.phase("load"), speed.warming_up(loaded, film.facts["compiled"]):
            host.progress(0.0, "compiling")
            with Run(view, [generator], boundary=boundary), torch.no_grad():
                view(**given)
        film.facts["compile_s"] = round(time.perf_counter() - began, 2)

    def _frames(
        self, film: _Film, loaded: Loaded, view: Any, denoisers: list[Any], pictures: dict[str, Any]
    ) -> Any:
        saved = self._saved(film, loaded.device)
        try:
            return self._denoise(film, loaded, view, denoisers, pictures, saved)
        except OtherInputs:
            film.host.log.write("the checkpoint was made from other inputs: the sample begins again")
            film.facts["resumed_from"] = None
            return self._denoise(film, loaded, view, denoisers, pictures, None)

    def _denoise(
        self,
        film: _Film,
        loaded: Loaded,
        view: Any,
        denoisers: list[Any],
        pictures: dict[str, Any],
        saved: Snapshot | None,
    ) -> Any:
        host, generation = film.host, film.generation
        # on the host whatever the device: the same noise on every kind of GPU
        generator = torch.Generator().manual_seed(generation.seed)
        given = calls.arguments(view, generation, generator, pictures)
        with self._previews(film, loaded) as previews:
            loop = Loop(
                host,
                generation,
                view,
                denoisers,
                loaded.device,
                film.environment,
                previews,
                film.stage,
                film.gang,
            )
            frames = loop.call(given, generator, saved, strict=not film.facts.get("differences"))
        watch, saver = loop.watch, loop.saver
        decoded = time.perf_counter()
        black = check_frames(frames)
        if frames.shape[1] != generation.frames:
            raise PermanentFailure(
                f"/frames: the pipeline made {frames.shape[1]} frames, not {generation.frames}"
            )
        film.facts |= {
            "seconds": watch.seconds() | {"decode": round(decoded - (watch.last_step or decoded), 4)},
            "to_first_pass_s": round((watch.first_pass or decoded) - film.began, 4),
            "steps_computed": watch.steps,
            "checkpoints": {
                "saved": saver.saved,
                "bytes": saver.nbytes,
                "longest_hold_s": round(saver.longest_hold_s, 4),
            },
            "all_black": black,
        }
        if black:
            host.log.write("every frame is black: look at the prompt, the number type and the VAE")
        return frames

    def _saved(self, film: _Film, device: Any) -> Snapshot | None:
        """The task's checkpoint, with what has changed since it was made said in the job."""
        path = film.host.restore() if film.generation.model.facts.resume == "exact" else None
        if path is None:
            film.facts["resumed_from"] = None
            return None
        saved = checkpoint.read(path, device)
        changed = checkpoint.differences(saved.environment, film.environment)
        film.facts |= {"resumed_from": saved.step, "differences": changed}
        film.host.log.write(f"goes on after step {saved.step}")
        if changed:
            film.host.log.write(
                "the sample may differ in its last bits from an uninterrupted one, since this is not the "
                "place where its checkpoint was made: " + "; ".join(changed)
            )
        return saved

    @contextlib.contextmanager
    def _previews(self, film: _Film, loaded: Loaded) -> Iterator[preview.Previews | None]:
        vae = getattr(loaded.pipeline, "vae", None)
        if not film.generation.preview or vae is None or (film.gang is not None and film.gang.rank):
            yield None
            return
        if "preview" not in loaded.notes:
            loaded.notes["preview"] = preview.painter(vae, film.generation)
        if loaded.notes["preview"] is None:
            yield None
            return
        previews = preview.Previews(loaded.notes["preview"], film.generation, film.host.preview)
        try:
            yield previews
        finally:
            previews.close()

    # --- out -----------------------------------------------------------------------------------------

    def _write(self, film: _Film, task: TaskContext, out: FramesOut, frames: Any) -> None:
        host, generation = film.host, film.generation
        # nothing of the job in it: the same settings give the same files
        described = generation.described()
        numbers = list(task.frames or ())
        scratch, started = host.scratch, time.time()
        peak = _peak(frames.device)
        share = (1 - DENOISED) / max(1, len(numbers))
        last = time.perf_counter()

        def path_of(index: int) -> Path:
            return scratch / f"frame-{index + 1}.png"

        def written(index: int, path: Path) -> None:
            nonlocal last
            now = time.perf_counter()
            host.publish(index + 1, {OUTPUT: path}, started_at=started, duration_s=now - last, peak_vram=peak)
            last = now
            host.progress(min(1.0, DENOISED + share * (index + 1)), f"frame {index + 1}")

        text = {"Software": "Stillframe", "generation": json.dumps(described, ensure_ascii=False)}
        out.write(
            frames[0], generation.bits, path_of, text, [number - 1 for number in numbers], written, host.check
        )
        film.facts["seconds"] |= {"write": round(out.write_s, 4)}
        film.facts["peak_vram"] = peak
        report = {
            "job": task.job_id,
            "take": task.take,
            "settings": described,
            "environment": film.environment,
            "made": film.facts,
        }
        sidecar = scratch / "sidecar.json"
        sidecar.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        host.publish_artifact(f"{task.step_name}.json", sidecar, "application/json")
        host.result(film.facts)


def _check_device(generation: Generation, task: TaskContext) -> None:
    owned = task.device.get("kind", "cpu")
    if generation.device == "cuda" and owned != "cuda":
        raise DeviceUnavailable("/device: cuda was asked for, and this slot owns no GPU")


def _peak(device: Any) -> int | None:
    """Most bytes that torch had of the device in this sample; ``None`` on a CPU."""
    return int(torch.cuda.max_memory_allocated()) if device.type == "cuda" else None


def create() -> VideoEngine:
    """A fresh engine."""
    return VideoEngine()
