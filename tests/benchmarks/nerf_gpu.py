"""Radiance fields and splats on one GPU: ``python -m tests.benchmarks.nerf_gpu [nerf|splat|all] [SECONDS]``.

Trains on 100 views of 800x800 of an object drawn by formula, for SECONDS (60), and says held-out PSNR, peak
memory, and how many 1080p views a second were rendered and written. Bounds: 33 dB for both, 30 views/s for
splats. Exit codes: 0 they were kept, 1 not, 3 it could not be run here, with the reason.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from farm.errors import FarmError
from tests.benchmarks.machine import hardware
from tests.unit.jobs.local_host import LocalHost
from tests.unit.jobs.nerf.scenes import assets_of, write_set

NOT_RUN = 3
VIEWS, SIDE = 100, 800
BOUND_DB, BOUND_FPS = 33.0, 30.0
FILM = 120


def ready(methods: list[str]) -> str:
    """Why it cannot be run here; empty when it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch sees no NVIDIA GPU"
    from jobs.nerf.extensions import build

    try:
        built = dict(build())
    except FarmError as error:
        return error.message
    for package, what in built.items():
        print(f"{package}: {what}", flush=True)
    if "splat" in methods and built.get("gsplat") == "not installed":
        return "gsplat is not installed"
    return ""


def measure(method: str, seconds: float, folder: Path, files: dict[str, Path]) -> bool:
    """One method; whether it kept its bounds."""
    spec: dict[str, Any] = {
        "source": "set/transforms.json", "method": method, "device": "cuda",
        "train": {"seconds": seconds, "preview_s": max(5.0, seconds / 6)},
        "path": {"type": "orbit"}, "frames": f"1-{FILM}", "resolution": [1920, 1080], "chunk_frames": FILM,
    }  # fmt: skip
    host = LocalHost(folder / method, files, spool_budget=2**36)
    began = time.monotonic()
    host.run_job("nerf", spec)
    took = time.monotonic() - began
    found = host.results["train"][0]
    psnr = host.results["evaluate"][0]["mean"]["psnr"]
    rendered = [frame.duration_s for (step, _), frame in host.published.items() if step == "views"]
    fps = len(rendered) / sum(rendered)
    print(
        f"{method} ({found['form']}): {psnr:.2f} dB held out after {found['seconds']:.1f} s and "
        f"{found['iterations']} iterations, {found['size']}, peak {found['peak_vram'] / 2**30:.2f} GiB; "
        f"1080p rendered and written at {fps:.1f} views/s; whole job {took:.0f} s",
        flush=True,
    )
    return bool(psnr >= BOUND_DB and (method == "nerf" or fps >= BOUND_FPS))


def main(which: str = "all", seconds: str = "60") -> int:
    """Measure; 0 when all bounds were kept."""
    methods = ["splat", "nerf"] if which == "all" else [which]
    if why := ready(methods):
        print(f"not run: {why}")
        return NOT_RUN
    print(hardware())
    with tempfile.TemporaryDirectory(prefix="stillframe-nerf-") as name:
        folder = Path(name)
        write_set(folder / "set", VIEWS, (SIDE, SIDE))
        files = assets_of(folder / "set")
        kept = [measure(method, float(seconds), folder, files) for method in methods]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
