"""The systemd unit of a node agent: the rights that fences need, by delegation. Pure text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from gpu_pinning.errors import PinningError
from gpu_pinning.rights import AGENT_LEAF

WEIGHT = 20
"""What the whole farm weighs beside other services (100), for processors and disks."""


def systemd_unit(
    command: list[str],
    *,
    user: str | None = None,
    environment: Mapping[str, str] | None = None,
    environment_file: str | None = None,
    working_directory: str | None = None,
    weight: int | None = WEIGHT,
    description: str = "Stillframe node agent",
) -> str:
    """The unit's text.

    ``command`` begins with an absolute path. With ``user`` the agent runs unprivileged: it has its cgroups by
    delegation, and CAP_SYS_NICE for memory policies; device nodes are then fenced by user namespaces. As root
    they are fenced by BPF. ``weight`` None: as much as any other service; a server that the agent itself runs
    is part of this one. Raises PinningError for values that a unit cannot hold.
    """
    if not command or not command[0].startswith("/"):
        raise PinningError(f"command = {command!r}: begin with an absolute path, as systemd asks for")
    for text in (*command, user or "", environment_file or "", working_directory or "", description):
        if "\n" in text or "\0" in text:
            raise PinningError(f"{text!r} holds a line break, which a unit cannot")
    lines = [
        "[Unit]",
        f"Description={_escape(description)}",
        "Wants=network-online.target",
        "After=network-online.target nvidia-persistenced.service",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(_word(part) for part in command)}",
        "# SIGHUP to the agent alone: `systemctl kill` would send it to every slot, which would end.",
        "ExecReload=/bin/kill -s HUP $MAINPID",
        "Restart=always",
        "RestartSec=2",
        "# Slots are children of the agent, in groups of their own: they get the time to park.",
        "KillMode=mixed",
        "TimeoutStopSec=120",
        "OOMPolicy=continue",
        "# The right to make a group per slot; the agent itself sits in a leaf, since a group that gives",
        "# controllers to its children may hold no processes.",
        "Delegate=cpu cpuset io memory pids",
        f"DelegateSubgroup={AGENT_LEAF}",
        "TasksMax=infinity",
        "LimitMEMLOCK=infinity",
        "LimitNOFILE=1048576",
    ]
    if weight is not None:
        lines += [
            "# Where somebody else wants the same cores or disks, the farm gives way.",
            f"CPUWeight={weight}",
            f"IOWeight={weight}",
        ]
    if user:
        lines += [f"User={user}", "SupplementaryGroups=video render", "AmbientCapabilities=CAP_SYS_NICE"]
    if working_directory:
        lines.append(f"WorkingDirectory={_escape(working_directory)}")
    if environment_file:
        lines.append(f"EnvironmentFile=-{_escape(environment_file)}")
    for name, value in (environment or {}).items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\n" in value:
            raise PinningError(f"{name}={value!r} cannot stand in a unit; put it into the environment file")
        lines.append(f"Environment={_word(f'{name}={value}')}")
    lines += ["", "[Install]", "WantedBy=multi-user.target", ""]
    return "\n".join(lines)


def _escape(text: str) -> str:
    return text.replace("%", "%%")


def _word(text: str) -> str:
    """One argument, quoted for systemd: % begins a specifier and $ a variable there."""
    text = _escape(text).replace("$", "$$")
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./$-]+", text):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"' if shlex.quote(text) != text or not text else text
