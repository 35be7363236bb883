"""Writes docs/reference/settings.md from the settings: ``python scripts/write_settings_reference.py``."""

from __future__ import annotations

from pathlib import Path

from farm.settings import Settings

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference" / "settings.md"


def reference() -> str:
    """The page's text."""
    lines = [
        "# Settings",
        "",
        "Read from the environment of every process of the farm. Times are seconds, sizes bytes. What",
        "describes one node (its neighbours, slots and placement) stands in its [farm.toml](farm_toml.md).",
        "",
        "| variable | default | what it is |",
        "| --- | --- | --- |",
    ]
    for name, field in Settings.model_fields.items():
        default = "" if field.default_factory is not None else field.default
        if isinstance(default, bool):
            shown = str(default).lower()
        else:
            shown = f"{default:_}" if isinstance(default, int) else str(default or "")
        if name == "data":
            shown = "~/.local/share/stillframe"
        lines.append(f"| `FARM_{name.upper()}` | {f'`{shown}`' if shown else ''} | {field.description} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(reference())
