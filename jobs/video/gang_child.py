"""A rank of a gang other than the first.

``python -m jobs.video.gang_child RANK SIZE RENDEZVOUS DEVICE THREADS`` reads one sample a line on stdin
(:func:`request`), takes part in it, and answers with a line: ``{"done": true, ...}`` or ``{"error": text}``;
after an error it ends. Nothing that it computes leaves it but through the gang.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, cast

from farm.errors import PermanentFailure
from jobs.engine import Host

_PR_SET_PDEATHSIG: Final = 1


def request(host: Host, generation: Any, restored: Path | None) -> dict[str, Any]:
    """What the first rank sends: the generation, its files on this machine, the checkpoint."""
    loras = [lora.path for lora in generation.loras]
    paths = [generation.image, generation.last_image, generation.video, *loras]
    return {
        "generation": generation.model_dump(mode="json"),
        "files": {path: str(host.asset(path)) for path in paths if path is not None},
        "restored": str(restored) if restored else None,
    }


class RankHost:
    """The host of a rank: files come from the first one, everything else is the first one's matter."""

    def __init__(self, files: Mapping[str, str], restored: str | None) -> None:
        self._files = files
        self._restored = restored
        self.log = self

    def write(self, text: str) -> None:
        """To the slot's own log."""
        print(text, file=sys.stderr)

    def check(self) -> None:
        """The first rank reads the control word."""

    def progress(self, fraction: float, note: str = "") -> None:
        """The first rank tells it."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Not counted."""
        return contextlib.nullcontext()

    def asset(self, path: str) -> Path:
        """A file that the first rank named."""
        if path not in self._files:
            raise PermanentFailure(f"the job has no asset {path!r}")
        return Path(self._files[path])

    def restore(self) -> Path | None:
        """The checkpoint that the first rank goes on from."""
        return Path(self._restored) if self._restored else None


def main(engine_of: Callable[[], Any] | None = None) -> int:
    """Serve samples until stdin ends or one fails; ``engine_of`` makes another engine than the video one."""
    rank, size, threads = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[5])
    _die_with_parent()
    # what libraries print must not stand among the answers
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import torch

    from jobs.video.engine import VideoEngine
    from jobs.video.gang import Member
    from jobs.video.payload import Generation

    torch.set_num_threads(threads)
    answers.write(json.dumps({"ready": True}) + "\n")
    member = Member(rank, size, Path(sys.argv[3]), sys.argv[4])
    engine = (engine_of or VideoEngine)()
    engine.open(cast(Host, RankHost({}, None)))
    try:
        for data in _lines():
            host = RankHost(data["files"], data["restored"])
            try:
                told = engine.follow(Generation.model_validate(data["generation"]), cast(Host, host), member)
            except Exception as error:  # noqa: BLE001  the first rank raises it again
                answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
                # at once: an orderly end would wait in a collective that the first rank has not left
                os._exit(1)
            answers.write(json.dumps({"done": True, **told}) + "\n")
    finally:
        engine.close()
        member.close()
    return 0


def _die_with_parent() -> None:
    """A rank may wait in a collective that nobody will ever join."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _lines() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


if __name__ == "__main__":
    sys.exit(main())
