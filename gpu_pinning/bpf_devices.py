"""Device nodes kept from a cgroup v2 by a BPF program, as systemd's DevicePolicy and runc do it.

cgroup v2 has no devices controller; a program of type BPF_PROG_TYPE_CGROUP_DEVICE, attached to the group,
is asked at each open and mknod instead (kernel: Documentation/admin-guide/cgroup-v2.rst, "Device controller";
bpf(2)). The program here says no to listed character devices and yes to everything else. It lives as long as
its group. Several programs on one path all have to agree (BPF_F_ALLOW_MULTI), so this can only tighten.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable
from pathlib import Path

from gpu_pinning.errors import FenceError

_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_TYPE_CGROUP_DEVICE, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI = 15, 6, 2
_DEV_CHAR = 2


def _instruction(code: int, dst: int = 0, src: int = 0, jump: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, (src << 4) | dst, jump, value)


def program(denied: Iterable[tuple[int, int | None]]) -> bytes:
    """BPF code that refuses the character devices ``(major, minor)``; minor None stands for all of a major.

    The context is ``struct bpf_cgroup_dev_ctx {u32 access_type, major, minor}``; the device type is the low
    half of access_type.
    """
    load, jump_if_not, move, leave, mask = 0x61, 0x55, 0xB7, 0x95, 0x57
    code = [
        _instruction(load, dst=2, src=1, jump=0),
        _instruction(mask, dst=2, value=0xFFFF),
        _instruction(load, dst=3, src=1, jump=4),
        _instruction(load, dst=4, src=1, jump=8),
    ]
    allow = [_instruction(move, dst=0, value=1), _instruction(leave)]
    deny = [_instruction(move, dst=0, value=0), _instruction(leave)]
    rules = []
    for major, minor in denied:
        rule = [] if minor is None else [_instruction(jump_if_not, dst=4, jump=2, value=minor)]
        rule = [_instruction(jump_if_not, dst=3, jump=len(rule) + 2, value=major), *rule, *deny]
        rules += rule
    # Block devices skip every rule.
    code.append(_instruction(jump_if_not, dst=2, jump=len(rules), value=_DEV_CHAR))
    return b"".join([*code, *rules, *allow])


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise FenceError(f"bpf(2) is not known on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    answer = int(libc.syscall(number, command, buffer, 128))
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "bpf")
    return answer


def deny(group: Path, denied: Iterable[tuple[int, int | None]]) -> None:
    """Refuse these character devices to every process in the v2 group. Raises FenceError."""
    code = program(denied)
    text = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Dual MIT/GPL")
    load = struct.pack(
        "<IIQQIIQII",
        _TYPE_CGROUP_DEVICE,
        len(code) // 8,
        ctypes.addressof(text),
        ctypes.addressof(licence),
        0,
        0,
        0,
        0,
        0,
    )
    try:
        folder = os.open(group, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            loaded = _bpf(_PROG_LOAD, load)
            try:
                _bpf(_PROG_ATTACH, struct.pack("<IIII", folder, loaded, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI))
            finally:
                os.close(loaded)
        finally:
            os.close(folder)
    except OSError as error:
        raise FenceError(f"BPF device filter on {group}: {error.strerror}") from None
