"""Importing the API is light: no torch, no NVML, no renderer, and nothing of the parts behind the walls."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import api.app, api.server
heavy = {"torch", "pynvml", "mitsuba", "OpenEXR", "av", "workers", "gpu_pinning", "celery"}
found = sorted(heavy & {name.partition(".")[0] for name in sys.modules})
print(found)
"""


def test_the_api_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stdout
