"""The breach on purpose, with a decode load that farm work really disturbs: frozen, recovered, finished."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpu_pinning.guard.decide import Policy
from gpu_pinning.stillness.breach import try_breach
from gpu_pinning.stillness.sources import DecodeProcess

# a step takes 5 ms, and 0.6 s as long as the farm's work moves: what sharing a device does, without one
_DECODE = """
import sys, time, os
from pathlib import Path
from gpu_pinning.stillness.stamps import StampReader, StampWriter
work = Path(sys.argv[1]); writer = StampWriter(Path(sys.argv[2])); parent = os.getppid()
reader = None; seen = 0; moved = 0.0
while os.getppid() == parent and not writer.full:
    if reader is None and work.exists() and work.stat().st_size:
        reader = StampReader(work)
    if reader is not None and len(reader) != seen:
        seen, moved = len(reader), time.monotonic()
    time.sleep(0.6 if time.monotonic() - moved < 0.2 and seen else 0.005)
    writer.stamp()
"""
_WORK = """
import sys, time, hashlib
from pathlib import Path
from gpu_pinning.stillness.stamps import StampWriter
writer = StampWriter(Path(sys.argv[1])); found = b""
if len(sys.argv) > 3:
    Path(sys.argv[3] + ".ready").touch()
    while not Path(sys.argv[3]).exists():
        time.sleep(0.01)
for _ in range(int(sys.argv[2])):
    found = hashlib.sha256(found).digest(); time.sleep(0.01); writer.stamp()
print(found.hex())
"""


def _work(stamps: Path, units: int, gate: Path | None) -> list[str]:
    command = [sys.executable, "-c", _WORK, str(stamps), str(units)]
    return [*command, str(gate)] if gate else command


@pytest.mark.timeout(300)
def test_work_on_the_neighbours_device_is_frozen_and_finishes_later_with_the_same_result(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", _DECODE, str(tmp_path / "breach.stamps")]
    decode = DecodeProcess("scripted", sorted({0}), tmp_path, command)
    # a shared machine: only a stall is to count as a breach
    seen = try_breach(
        decode,
        tmp_path,
        gpu="one",
        work=_work,
        units=300,
        watch_s=8.0,
        learn_s=1.0,
        budget_ms=250.0,
        policy=Policy(allowed_share=0.3),
        say=lambda _: None,
    )
    assert seen["freezes"] >= 1, seen
    assert seen["same_result"] and seen["result"], seen
    assert any(event["frozen"] for event in seen["events"])
    assert seen["guard_cpu_share"] < 0.5
    assert seen["breached"] and seen["frozen_after_s"] is not None, seen
