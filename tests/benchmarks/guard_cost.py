"""What the guard costs the agent: ``python -m tests.benchmarks.guard_cost``.

A server process streams a token every 8 ms (as a 7B model on one GPU does) and has a metrics page of a
thousand lines; the guard watches it with all it has: probe, page, windows, rule; once with windows of 250 ms,
and once with the short ones of farm work on the neighbour's own GPU. Measured is the processor time of this
process, start-up apart.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from gpu_pinning.guard.loop import FarmLoad, GuardLoop, Hold
from gpu_pinning.guard.watch import Subject, Watch
from tests.benchmarks.machine import Figure, judge

SECONDS = 20.0
ROOT = Path(__file__).resolve().parents[2]


class _NoHands:
    def hold(self, hold: Hold) -> None:
        """Nothing is held here."""


def measure(folder: Path) -> list[Figure]:
    """Processor time per second, and tokens seen per second."""
    found = []
    for name, gpus in (("guard of one neighbour", ()), ("the same, work on its own GPU", ("GPU-a",))):
        share, tokens = _watch(folder, gpus)
        found += [
            Figure(f"{name}: share of one core", share, "", bound=0.03),
            Figure(f"{name}: tokens that its probe saw", tokens, "/s"),
        ]
    return found


def _watch(folder: Path, gpus: tuple[str, ...]) -> tuple[float, float]:
    (folder / "interval_ms").write_text("8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.unit.gpu_pinning.guard.decode_server", str(port), str(folder)]
    server = subprocess.Popen(command, cwd=ROOT)
    subject = Subject("llm", url=f"http://127.0.0.1:{port}", gpus=gpus, budget_ms=1000.0)
    watch = Watch.of(subject, None)
    load = FarmLoad(busy=True, gpus=frozenset(gpus))
    loop = GuardLoop([watch], _NoHands(), lambda: load, lambda event: None)
    stop = threading.Event()
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not (watch.curve and watch.curve[-1].steps and watch.running):
            if time.monotonic() > deadline:
                raise RuntimeError("the server was not seen to stream")
            time.sleep(0.1)
        began, spent, points = time.monotonic(), time.process_time(), len(watch.curve)
        time.sleep(SECONDS)
        seconds = time.monotonic() - began
        share = (time.process_time() - spent) / seconds
        tokens = sum(point.steps for point in list(watch.curve)[points:]) / seconds
    finally:
        stop.set()
        thread.join(10)
        server.kill()
        server.wait()
    return share, tokens


def main() -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        return judge(measure(Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
