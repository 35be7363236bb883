"""``python -m gpu_pinning.stillness``: the bench without Stillframe's command line, for a machine that has
``gpu_pinning`` alone.

Exit codes: 0 still, 1 it could not be run, 2 a bad option, 4 disturbed, 5 void, 6 inconclusive.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpu_pinning.errors import PinningError
from gpu_pinning.stillness.run import Options, run


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m gpu_pinning.stillness", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--form", default="auto")
    parser.add_argument("--url")
    parser.add_argument("--model")
    parser.add_argument("--hurt", action="store_true", help="the positive control too: it hurts neighbours")
    parser.add_argument("--explain", action="store_true", help="three arms without the guard too: it hurts")
    parser.add_argument("--live", type=Path, help="a folder to show the run in as it happens")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--quartets", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("stillness"))
    chosen = parser.parse_args()
    try:
        options = Options(
            chosen.seconds, chosen.form, chosen.url, chosen.model, chosen.hurt, chosen.config, chosen.out,
            chosen.quartets, live=chosen.live, explain=chosen.explain,
        )  # fmt: skip
    except ValueError as error:
        parser.error(str(error))
    try:
        return run(options, say)[1]
    except PinningError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
