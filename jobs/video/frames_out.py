"""Frames from the device to PNG files: made integers on the device, copied page-locked, shared with encoders.

The ring is one stretch of shared memory. On a GPU it is page-locked, so that the device writes straight into
it; the encoder children map the same pages and write the files. Nothing is copied a second time and nothing
is pickled. Without a GPU the path is the same, the pages are plain.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from farm.errors import TaskFailed
from jobs.pacing import own_pace

torch: Any = importlib.import_module("torch")

_CHUNK_FRAMES: Final = 8
"""Frames that are converted and copied at once: large enough for the full rate, small beside the decoder."""
_CHUNKS: Final = 3
_MOST_CHILDREN: Final = 4


def to_integers(frames: Any, bits: int) -> Any:
    """(n, 3, height, width) in 0 to 1 to (n, height, width, 3) integers, on the device that they are on.

    Rounds to the nearest of 256 (``bits`` 8) or 65,536 (16) levels.
    """
    top = 255 if bits == 8 else 65535
    whole = frames.permute(0, 2, 3, 1).to(torch.float32).mul(top).round_().clamp_(0, top)
    return whole.to(torch.uint8 if bits == 8 else torch.uint16).contiguous()


class FrameRing:
    """Shared memory for ``chunks`` chunks of frames of ``frame_bytes``; page-locked where there is a GPU."""

    def __init__(
        self, frame_bytes: int, device: Any, chunks: int = _CHUNKS, frames: int = _CHUNK_FRAMES
    ) -> None:
        self.frame_bytes, self.chunks, self.frames = frame_bytes, chunks, frames
        self.nbytes = frame_bytes * chunks * frames
        self.fd = os.memfd_create("frames", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.nbytes)
        self._memory: Any = mmap.mmap(self.fd, self.nbytes)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self.locked = False
        self._pace = own_pace()
        self._stream: Any = None
        if torch.device(device).type == "cuda":
            code = torch.cuda.cudart().cudaHostRegister(self._bytes.data_ptr(), self.nbytes, 0)
            if int(code) != 0:
                self.close()
                raise TaskFailed(f"the frame ring cannot be page-locked (CUDA error {int(code)})")
            self.locked = True

    def chunk(self, index: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        """Chunk ``index`` as a tensor of ``shape``."""
        count = 1
        for side in shape:
            count *= side
        size = count * dtype.itemsize
        start = index * self.frames * self.frame_bytes
        return self._bytes[start : start + size].view(dtype).view(shape)

    def fill(self, chunk: int, frames: Any, indices: list[int], bits: int) -> Any:
        """Make frames ``indices`` integers and copy them into a chunk.

        Returns an event that is done when they are there, ``None`` where they are already: on a GPU chunks
        are copied by a stream of their own, while the next ones are converted.
        """
        contiguous = indices == list(range(indices[0], indices[-1] + 1))
        whole = to_integers(frames[indices[0] : indices[-1] + 1] if contiguous else frames[indices], bits)
        size = whole[0].numel() * whole.element_size()
        target = self.chunk(chunk, torch.uint8, (len(indices), self.frame_bytes))
        source = whole.view(torch.uint8).view(len(indices), size)
        pairs = (
            [(target, source)]
            if size == self.frame_bytes
            else list(zip(target[:, :size], source, strict=True))
        )
        if not self.locked:
            for place, data in pairs:
                self._pace.copy(place, data, page_locked=False)
            return None
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for place, data in pairs:
                self._pace.copy(place, data, page_locked=True)
        # its memory must not be given to the next chunk while it is still being read
        source.record_stream(self._stream)
        return self._stream.record_event()

    def offset(self, chunk: int, frame: int) -> int:
        """Where a frame of a chunk begins, in bytes."""
        return (chunk * self.frames + frame) * self.frame_bytes

    def close(self) -> None:
        """Give the memory back."""
        if self.locked:
            torch.cuda.cudart().cudaHostUnregister(self._bytes.data_ptr())
            self.locked = False
        self._bytes = None
        with suppress(BufferError):
            self._memory.close()
        with suppress(OSError):
            os.close(self.fd)


class Encoders:
    """Children that write PNG files out of a ring; they stay between the tasks of a slot."""

    def __init__(self, ring: FrameRing, count: int) -> None:
        self._children: list[subprocess.Popen[bytes]] = []
        self._idle: deque[subprocess.Popen[bytes]] = deque()
        self._selector = selectors.DefaultSelector()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        for _ in range(max(1, min(_MOST_CHILDREN, count))):
            child = subprocess.Popen(
                [sys.executable, "-m", "jobs.video.png_child", str(ring.fd)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[ring.fd],
                process_group=0,
                env=environment,
                cwd=Path(__file__).parents[2],
            )
            assert child.stdout is not None
            self._children.append(child)
            self._idle.append(child)
            self._selector.register(child.stdout, selectors.EVENT_READ, child)

    @property
    def pids(self) -> list[int]:
        """Process ids of the children."""
        return [child.pid for child in self._children]

    @property
    def free(self) -> bool:
        """Whether a child waits for work."""
        return bool(self._idle)

    @property
    def busy(self) -> bool:
        """Whether a child works."""
        return len(self._idle) < len(self._children)

    def alive(self) -> bool:
        """Whether all children live."""
        return all(child.poll() is None for child in self._children)

    def ask(self, **request: Any) -> None:
        """Give a free child a frame."""
        child = self._idle.popleft()
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
        except OSError as error:
            raise TaskFailed(f"a frame encoder has died (exit code {child.poll()})") from error

    def answers(self, wait_s: float) -> list[Path]:
        """Files that were finished within ``wait_s``. Raises :class:`farm.errors.TaskFailed`."""
        done = []
        for key, _ in self._selector.select(wait_s):
            child: subprocess.Popen[bytes] = key.data
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise TaskFailed(f"a frame encoder has died (exit code {child.wait()})")
            answer = json.loads(line)
            self._idle.append(child)
            if "error" in answer:
                raise OSError(None, answer["error"], answer["path"])
            done.append(Path(answer["path"]))
        return done

    def close(self) -> None:
        """End the children; those that do not end by themselves are killed."""
        self._selector.close()
        for child in self._children:
            assert child.stdin is not None and child.stdout is not None
            with suppress(OSError):
                child.stdin.close()
            child.stdout.close()
        for child in self._children:
            try:
                child.wait(2.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


class FramesOut:
    """A slot's way out for frames; ring and children are kept while frames keep their size."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._ring: FrameRing | None = None
        self._encoders: Encoders | None = None
        self.write_s = 0.0
        """Seconds from the last film's first frame to its last file."""

    @property
    def pids(self) -> list[int]:
        """The children's process ids."""
        return self._encoders.pids if self._encoders else []

    def prepare(self, width: int, height: int, bits: int, device: Any) -> int:
        """Make ready for frames of that size; bytes of the ring. Begun early, children start meanwhile."""
        frame_bytes = width * height * 3 * (bits // 8)
        # aligned for every sample type; most sizes need no filling, and go in one copy
        frame_bytes += -frame_bytes % 64
        wanted = torch.device(device).type == "cuda"
        ring, encoders = self._ring, self._encoders
        fits = ring is not None and ring.frame_bytes == frame_bytes and ring.locked == wanted
        if not fits or encoders is None or not encoders.alive():
            self.close()
            self._ring = FrameRing(frame_bytes, device)
            self._encoders = Encoders(self._ring, self._threads)
        assert self._ring is not None
        return self._ring.nbytes

    def write(
        self,
        frames: Any,
        bits: int,
        path_of: Callable[[int], Path],
        text: Mapping[str, str],
        wanted: list[int],
        written: Callable[[int, Path], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Write frames ``wanted`` (indices, ascending) of (n, 3, height, width) in 0 to 1.

        ``written(index, path)`` is told of each in order, on this thread. Raises what ``check`` raises, and
        :class:`farm.errors.TaskFailed` where a child dies.
        """
        ring, encoders = self._ring, self._encoders
        assert ring is not None and encoders is not None
        _, _, height, width = frames.shape
        finished: dict[Path, int] = {}
        left: deque[int] = deque(wanted)
        free_chunks: deque[int] = deque(range(ring.chunks))
        in_chunk: dict[int, int] = {}
        chunk_of: dict[Path, int] = {}
        told: deque[int] = deque(wanted)
        done: dict[int, Path] = {}
        copying: deque[tuple[int, list[int], Any]] = deque()
        ready: deque[tuple[int, int, int]] = deque()
        began = time.perf_counter()
        try:
            with torch.inference_mode():
                while told:
                    check()
                    while left and free_chunks:
                        chunk = free_chunks.popleft()
                        indices = [left.popleft() for _ in range(min(ring.frames, len(left)))]
                        in_chunk[chunk] = len(indices)
                        copying.append((chunk, indices, ring.fill(chunk, frames, indices, bits)))
                    while copying and (not ready or copying[0][2] is None or copying[0][2].query()):
                        chunk, indices, copied = copying.popleft()
                        if copied is not None:
                            copied.synchronize()
                        ready.extend((chunk, place, index) for place, index in enumerate(indices))
                    while ready and encoders.free:
                        chunk, place, index = ready.popleft()
                        path = path_of(index)
                        finished[path], chunk_of[path] = index, chunk
                        encoders.ask(
                            offset=ring.offset(chunk, place),
                            width=width,
                            height=height,
                            bits=bits,
                            path=str(path),
                            text=dict(text),
                        )
                    for path in encoders.answers(0.05 if encoders.busy else 0.0):
                        done[finished.pop(path)] = path
                        chunk = chunk_of.pop(path)
                        in_chunk[chunk] -= 1
                        if not in_chunk[chunk]:
                            free_chunks.append(chunk)
                    while told and told[0] in done:
                        # each is published, which takes time: many may be done at once
                        check()
                        index = told.popleft()
                        written(index, done.pop(index))
        except BaseException:
            # whatever the children still answer belongs to a film that is over
            self.close()
            raise
        self.write_s = time.perf_counter() - began

    def close(self) -> None:
        """End the children and give the memory back."""
        encoders, self._encoders = self._encoders, None
        ring, self._ring = self._ring, None
        if encoders is not None:
            encoders.close()
        if ring is not None:
            ring.close()
