"""The reference of settings says what the settings are."""

from __future__ import annotations

import re
from pathlib import Path

from farm.settings import Settings

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"


def test_the_page_lists_every_setting_with_its_description() -> None:
    rows = dict(re.findall(r"^\| `(FARM_[A-Z_]+)` \|[^|]*\| (.+) \|$", PAGE.read_text(), re.MULTILINE))
    wanted = {f"FARM_{name.upper()}": field.description for name, field in Settings.model_fields.items()}
    assert all(wanted.values()), [name for name, text in wanted.items() if not text]
    # a setting is described for people and here alike: run scripts/write_settings_reference.py
    assert {name: rows.get(name) for name in wanted} == wanted
