"""Writes docs/reference/cli.md from the command line itself: ``python scripts/write_cli_reference.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer.main

from api.cli.main import app

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"
_HEAD = """# Command line

`farm` asks the farm that `FARM_URL` and `FARM_KEY` name; without them, the one that `farm up` started last
(its key lies in `~/.config/stillframe/key.json`, mode 0600). Data goes to stdout, everything else to stderr;
`--json` prints JSON. A job's id may be given by its beginning or its end, at least four digits of it.
`farm --install-completion` teaches the shell commands, options and the ids of the newest jobs.

Exit codes: 0 done, 1 the farm said no or could not be reached, 2 the command line was wrong, 3 a watched job
failed or was cancelled, 130 interrupted.
"""


def reference() -> str:
    """The page's text."""
    root: Any = typer.main.get_command(app)
    lines = [_HEAD]
    for name in root.commands:
        lines += _command(root.commands[name], f"farm {name}", "##")
    return "\n".join(lines).rstrip() + "\n"


def _command(command: Any, path: str, level: str) -> list[str]:
    below = dict(getattr(command, "commands", None) or {})
    arguments = [p for p in command.params if p.param_type_name == "argument" and not p.hidden]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    further = ["[COMMAND]" if command.invoke_without_command else "COMMAND"] if below else []
    usage = " ".join([path, *(_argument(p) for p in arguments), *further])
    lines = [f"{level} {path}", "", f"    {usage}", "", " ".join((command.help or "").split()), ""]
    rows = [(f"`{_argument(p)}`", p) for p in arguments]
    rows += [(", ".join(f"`{flag}`" for flag in (*p.opts, *p.secondary_opts)), p) for p in options]
    rows = [(words, p) for words, p in rows if p.name != "help"]
    if rows:
        lines += ["| argument or option | what it is | default |", "| --- | --- | --- |"]
        lines += [f"| {words} | {_cell(p.help)} | {_default(p)} |" for words, p in rows]
        lines.append("")
    for name, one in below.items():
        lines += _command(one, f"{path} {name}", "###")
    return lines


def _argument(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name).upper().rstrip(".")
    many = "..." if parameter.nargs == -1 else ""
    return f"{name}{many}" if parameter.required else f"[{name}{many}]"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _default(parameter: Any) -> str:
    value = parameter.default
    if value in (None, False, (), []) or callable(value) or parameter.required:
        return ""
    return f"`{value}`"


if __name__ == "__main__":
    TARGET.write_text(reference())
