"""What the proofs of stillness need and find here: said in the first second, by the standard library.

``check`` prints one line for each package and for the GPUs; False where the proof cannot begin.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
from pathlib import Path

NEEDED = {"numpy": "numpy", "pydantic": "pydantic", "pydantic_core": "pydantic_core"}
FOR_GPUS = {"torch": "torch", "pynvml": "nvidia-ml-py"}
REAL_WORK = {
    "av": ("av", "encode: zlib stands in for x264 through PyAV"),
    "mitsuba": ("mitsuba", "render: numpy stands in for Mitsuba"),
    "diffusers": (
        "diffusers",
        "video: torch blocks of Wan's shapes stand in for diffusers' Wan",
    ),
}


def out_of(arguments: list[str]) -> Path:
    """The folder for reports: ``--out``, else $OUT, else ``stillness-proof``."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "stillness-proof")))
    chosen: Path = parser.parse_known_args(arguments)[0].out
    return chosen


def version(module: str, distribution: str) -> str | None:
    """The version of a package that could be imported, without importing it; None: it is not there."""
    if importlib.util.find_spec(module) is None:
        return None
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"


def stand_ins() -> list[str]:
    """Which pools do not do their kind's real work here, and what does instead."""
    return [
        f"{words} (not installed)"
        for module, (distribution, words) in REAL_WORK.items()
        if version(module, distribution) is None
    ]


def check(out: Path, *, cuda: bool) -> bool:
    """Print what is here; False, with a ``report.json`` that says why, where the proof cannot begin.

    ``cuda``: torch and NVML are needed too.
    """
    wanted = NEEDED | (FOR_GPUS if cuda else {})
    print(f"Python {platform.python_version()}, Linux {platform.release()}", flush=True)
    gpus = sorted(path.name for path in Path("/proc/driver/nvidia/gpus").glob("*"))
    print(f"NVIDIA GPUs that the driver lists: {', '.join(gpus) or 'none'}", flush=True)
    missing = []
    for module, distribution in {**wanted, **{name: row[0] for name, row in REAL_WORK.items()}}.items():
        found = version(module, distribution)
        print(f"{distribution}: {found or 'NOT THERE'}", flush=True)
        if found is None and module in wanted:
            missing.append(distribution)
    if not missing:
        return True
    why = f"everything: not installed: {', '.join(missing)} (python3 -m pip install {' '.join(missing)})"
    out.mkdir(parents=True, exist_ok=True)
    report = {"figures": [], "not_run": [why], "seconds": 0.0, "runs": {}}
    (out / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(f"not run: {why}", flush=True)
    return False
