"""A slot is back within moments of a kill: what it imports before its first task is light."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import workers.slot, workers.bench, workers.runner, workers.gpu_look, workers.spool
heavy = {"gpu_pinning", "torch", "numpy", "PIL", "mitsuba", "av", "fastapi", "httpx", "alembic"}
print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""


def test_a_slot_imports_nothing_that_its_first_task_may_not_need() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stdout
