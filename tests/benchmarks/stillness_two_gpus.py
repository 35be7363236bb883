"""Does the farm leave decode alone, with a GPU of its own? ``tests/benchmarks/stillness_two_gpus.py``.

Needs two NVIDIA GPUs of one host. Decode sits on GPU 0 (as a CUDA graph, then launch-bound), the farm on
GPU 1 and its cores: a denoise loop of Wan's shapes whose frames are copied to the host, NeRF training in
turns with it, render and encode, all full. Parts, arms, needs, files and exit codes are those of
``stillness_gpu.py``; its breach puts denoise steps on GPU 0 beside decode. On a machine with fewer GPUs it
says so and ends with 3.
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

    sys.exit(Proof(__doc__ or "", gpus=2).run())
