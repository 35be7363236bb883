"""One call of a pipeline with all that the farm does around its denoise loop."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, Final

from farm.errors import ParkRequested
from jobs.engine import Host
from jobs.video import caching
from jobs.video.checkpoint import Snapshot
from jobs.video.gang import Dismissed, Member
from jobs.video.payload import Generation
from jobs.video.preview import Previews
from jobs.video.replay import Run
from jobs.video.saving import Saver
from jobs.video.watch import Watch

torch: Any = importlib.import_module("torch")

DENOISED: Final = 0.9
"""Share of a task's progress that the denoise loop is; the rest is decoding and writing."""


@dataclass(slots=True)
class Loop:
    """Obeys the control word, watches, saves and shows, between the passes of one call.

    ``stage`` is told where the call is: ``encode``, ``denoise``, ``decode``. In a gang every rank has one.
    """

    host: Host
    generation: Generation
    view: Any
    denoisers: list[Any]
    device: Any
    environment: dict[str, Any]
    previews: Previews | None = None
    stage: list[str] = field(default_factory=lambda: ["encode"])
    gang: Member | None = None
    watch: Watch = field(init=False)
    saver: Saver = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watch(self.device)
        self.saver = Saver(
            self.host,
            self.generation.checkpoint_every,
            self.environment,
            exact_steps_only=caching.hooked(self.generation),
        )

    def call(
        self, given: dict[str, Any], generator: Any, saved: Snapshot | None = None, *, strict: bool = True
    ) -> Any:
        """The pipeline's frames for the arguments ``given``; goes on from ``saved``.

        ``strict``: a checkpoint of other conditioning is refused with
        :class:`jobs.video.replay.OtherInputs`. Raises what the host's check raises; a park saves first.
        """
        generation, host, watch, saver = self.generation, self.host, self.watch, self.saver
        exact = generation.model.facts.resume == "exact"
        hooked = caching.hooked(generation)
        every = generation.checkpoint_every
        gang = self.gang
        saves = exact and (gang is None or gang.rank == 0)

        def boundary(run: Run) -> None:
            watch.passing()
            self.stage[-1] = "denoise"
            if saves:
                saver.boundary(run)
            if gang is None:
                host.check()
            else:
                gang.agree(host.check)

        def stepped(index: int, latents: Any) -> None:
            watch.stepped(index, latents)
            if hooked and (index + 1) % every == 0:
                caching.clear(self.denoisers)
            if self.previews is not None:
                self.previews.offer(latents)
            host.progress(DENOISED * (index + 1) / run.total, f"step {index + 1} of {run.total}")

        def decoding() -> None:
            watch.denoised()
            self.stage[-1] = "decode"
            if gang is not None:
                gang.meeting = False
                if gang.rank:
                    raise Dismissed
            host.check()

        run = Run(
            self.view,
            [generator],
            resume=saved,
            boundary=boundary,
            stepped=stepped,
            decoding=decoding,
            cache=caching.schedule_of(generation),
            spread=gang.forward if gang is not None and gang.share == "guidance" else None,
            same_environment=strict,
        )
        with torch.no_grad():
            try:
                with run:
                    frames = self.view(**given).frames
                watch.denoised()
            except ParkRequested:
                if saves:
                    saver.park(run)
                raise
            except BaseException:
                saver.abandon()
                raise
        saver.finish()
        return frames
