"""The reference page of video jobs names every field that there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from jobs.video.spec import Spec

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "video.md"


def test_the_page_names_every_field() -> None:
    table = PAGE.read_text().split("## Fields")[1].split("##")[0]
    named = {
        name
        for line in table.splitlines()
        for name in re.findall(r"`(\w+)`", line.split("|")[1:2][0] if "|" in line else "")
    }
    assert named == set(Spec.model_fields)
