"""What is looked at in every step: are the latents finite, how long did it take, how far is it."""

from __future__ import annotations

import importlib
import time
from typing import Any

from farm.errors import TaskFailed

torch: Any = importlib.import_module("torch")


class NotFinite(TaskFailed):
    """The latents or the frames are not finite."""

    slug = "not-finite"
    title = "The latents or the frames are not finite"


class Watch:
    """Looks at each step's latents without waiting for the device: the answer is read one step later.

    That the loop is never more than one step ahead of the device also lets a pause take hold at once.
    """

    def __init__(self, device: Any) -> None:
        self._device = torch.device(device)
        self._flag: Any = None
        self._event: Any = None
        self._step = -1
        self.started = time.perf_counter()
        self.first_pass: float | None = None
        self.last_step: float | None = None
        self.steps = 0

    def passing(self) -> None:
        """A denoiser is about to run."""
        if self.first_pass is None:
            self.first_pass = time.perf_counter()

    def stepped(self, index: int, latents: Any) -> None:
        """Step ``index`` has given ``latents``. Raises :class:`NotFinite` for it or the one before."""
        self.settle()
        flag = torch.isfinite(latents).all()
        self._step = index
        self.steps += 1
        if flag.is_cuda:
            self._flag = torch.empty((), dtype=torch.bool, pin_memory=True)
            self._flag.copy_(flag, non_blocking=True)
            # sleeps while it waits: the usual event keeps a core busy for as long as the step takes
            self._event = torch.cuda.Event(blocking=True)
            self._event.record()
        else:
            self._flag = flag
            self.settle()

    def settle(self) -> None:
        """Wait for the last step that was looked at. Raises :class:`NotFinite` that names it."""
        if self._flag is None:
            return
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        finite, self._flag = bool(self._flag), None
        if not finite:
            raise NotFinite(
                f"step {self._step + 1}: the latents are not finite (NaN or infinite); "
                "try another number type, lower guidance, or another scheduler"
            )

    def denoised(self) -> None:
        """The loop is over; called again it does nothing."""
        if self.last_step is None:
            self.settle()
            self.last_step = time.perf_counter()

    def seconds(self) -> dict[str, float]:
        """Seconds of the stages of the call so far: ``encode`` and ``denoise``, and of a step."""
        first = self.first_pass or self.started
        last = self.last_step or time.perf_counter()
        denoise = last - first
        return {
            "encode": round(first - self.started, 4),
            "denoise": round(denoise, 4),
            "step": round(denoise / self.steps, 5) if self.steps else 0.0,
        }


def check_frames(frames: Any) -> bool:
    """Whether all frames are black; (1, n, 3, height, width). Raises :class:`NotFinite` naming a frame."""
    finite = torch.isfinite(frames[0]).flatten(1).all(dim=1)
    if not bool(finite.all()):
        first = int((~finite).nonzero()[0])
        raise NotFinite(
            f"frame {first + 1}: its pixels are not finite (NaN or infinite), although the latents were; "
            "the VAE may need float32"
        )
    return not bool(frames.any())
