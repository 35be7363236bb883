"""``python -m tests.benchmarks [NAME...]``: the benchmarks of any machine, each in a process of its own.

Those that need GPUs are run by their own name. The exit code is 1 where a bound was missed.
"""

from __future__ import annotations

import subprocess
import sys

ANY_MACHINE = (
    "control",
    "submit",
    "tick",
    "noop",
    "guard_cost",
    "agent_cost",
    "render_overhead",
    "video_overhead",
    "video_switches",
)


def main(names: list[str]) -> int:
    """Run them in turn; 0 when all kept their bounds."""
    missed = []
    for name in names or list(ANY_MACHINE):
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"tests.benchmarks.{name}"], check=False).returncode:
            missed.append(name)
    if missed:
        print(f"missed or failed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
