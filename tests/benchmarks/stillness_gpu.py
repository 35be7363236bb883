"""Does the farm leave decode alone? On one NVIDIA GPU: ``python3 tests/benchmarks/stillness_gpu.py``.

1. ``cores``: what busy cores do to a plain loop on another one, on arithmetic and on memory.
2. ``graph``: decode on the GPU as a CUDA graph; the CPU pools full on every core that the plan gives the
farm, under the guard. Arms: placebo, farm isolated, positive control (isolation off, which hurts).
3. ``breach``: denoise steps on decode's own GPU, frozen by the guard; finished later, same result.
4. ``host``: encodes on decode's cores, paused by the guard. 5. ``eager``: the arms with launch-bound decode,
and three without the guard: fenced, with every other worker at rest, and not fenced. Steal, waits of decode
for a core, what was held, and the guard's own processor time are reported apart.

Needs Python, torch, numpy and gpu_pinning's dependencies (pydantic); PyAV and Mitsuba where they are
installed, else zlib and numpy stand in, which the report says. Under ten minutes with ``--minutes 9``.

Writes ``report.json`` (after each part), ``topology.json``, and a folder per form with its JSON (after each
arm) and page. Exit codes: 0 every figure was reached; 1 one was missed; 3 nothing was missed, but parts
could not be run here, which it names.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.stillness_needs import check, out_of

if __name__ == "__main__":
    # before anything that may not be there is imported
    if not check(out_of(sys.argv[1:]), cuda="--cpu" not in sys.argv):
        sys.exit(3)
    from tests.benchmarks.stillness_proof import Proof

    sys.exit(Proof(__doc__ or "", gpus=1).run())
