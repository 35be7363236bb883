"""The reference of the command line is what the command line says of itself."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_the_page_is_current() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "write_cli_reference.py"))
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert page == script["reference"](), "run scripts/write_cli_reference.py"
