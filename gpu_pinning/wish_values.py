"""The kinds of values in farm.toml: sizes, cores, GPUs, addresses, variables; strict about their types."""

from __future__ import annotations

import os
import re
from decimal import Decimal
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from gpu_pinning import cpulist

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
THREAD_COUNTS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "RAYON_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
    "NUMBA_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Variables by which numeric libraries learn how many threads to start."""
_FIXED = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"}
_FIXED_HEADS = ("CUDA_MPS_", "STILLFRAME_")
MOST_BYTES = 2**63 - 1
MOST_CPUS = 65_536
MOST_THREADS = 4096
MOST_PROCESSES = 1 << 22
"""The kernel's PID_MAX_LIMIT."""
_VARIABLE_BYTES = 128 << 10
"""The kernel's MAX_ARG_STRLEN, for name, value and the zero byte."""
NAME = r"[a-z0-9][a-z0-9-]{0,39}"


def parse_size(value: object) -> object:
    """Bytes out of ``"64 GiB"`` or a whole number. Raises ValueError."""
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", value.strip())
        if match is None or match[2].lower() not in _UNITS:
            raise ValueError("write a size in bytes or with a unit, for example '64 GiB'")
        return int(Decimal(match[1]) * _UNITS[match[2].lower()])
    if isinstance(value, bool):
        raise ValueError("must be a size: bytes, or with a unit, for example '64 GiB'")
    return value


def _parse_cores(value: object) -> object:
    if isinstance(value, str):
        cpus = cpulist.parse(value)
        if not cpus:
            raise ValueError("is empty; write a number of cores or a list of CPUs such as '0-15'")
        return cpus
    if isinstance(value, list | tuple):
        if not value:
            raise ValueError("is empty; write a number of cores or a list of CPUs such as '0-15'")
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be 1 or more, or a list of CPUs such as '0-15'")
    return value


def _parse_nodes(value: object) -> object:
    if isinstance(value, str):
        nodes = cpulist.parse(value)
        if not nodes:
            raise ValueError("is empty; write a list of memory nodes such as '0-1'")
        return nodes
    if isinstance(value, list) and not value:
        raise ValueError("is empty; leave it out, or write a list of memory nodes such as '0-1'")
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of memory nodes such as '0-1'")
    return value


def _parse_gpu(value: object) -> object:
    if isinstance(value, int):
        raise ValueError(
            "is ambiguous: NVML, CUDA and /dev/nvidiaN number GPUs three ways; "
            "write a UUID or a PCI address out of `farm topology`"
        )
    if isinstance(value, str) and not re.fullmatch(
        r"GPU-[0-9a-fA-F-]{4,36}|([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", value
    ):
        raise ValueError(
            "is neither a UUID ('GPU-…') nor a PCI address ('0000:3b:00.0'); see `farm topology`"
        )
    return value


def _parse_url(value: object) -> object:
    if isinstance(value, str):
        parts = urlsplit(value)
        try:
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise ValueError("is no URL of a server; write for example 'http://127.0.0.1:8000'")
        if parts.username is not None or parts.password is not None:
            raise ValueError("holds a user or password, which would be shown; set FARM_NEIGHBOUR_KEY instead")
        if parts.path.rstrip("/").endswith("/v1"):
            raise ValueError("ends in /v1, which is added to it; leave that out")
    return value


def _parse_environment(value: dict[str, str]) -> dict[str, str]:
    faults = []
    for name, text in value.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            faults.append(f"{name!r} is no name of a variable: letters, digits and _, no digit first")
        elif name in THREAD_COUNTS:
            faults.append(f"sets {name}, which follows the slot's cores: use threads")
        elif name in _FIXED or name.startswith(_FIXED_HEADS):
            faults.append(f"sets {name}, which the plan sets: use gpus, mig or mps_percent")
        elif len(os.fsencode(f"{name}={text}")) >= _VARIABLE_BYTES:
            faults.append(
                f"{name} is longer than the {_VARIABLE_BYTES >> 10} KiB that a program can be given"
            )
    if faults:
        raise ValueError("; ".join(faults))
    return value


Flag = Annotated[bool, Field(strict=True)]
Whole = Annotated[int, Field(strict=True)]
Size = Annotated[Whole, BeforeValidator(parse_size), Field(ge=1, le=MOST_BYTES)]
Cores = Annotated[
    Annotated[Whole, Field(le=MOST_CPUS)] | tuple[Whole, ...],
    BeforeValidator(_parse_cores),
]
"""A number of physical cores, or the CPUs themselves."""
GpuName = Annotated[str, BeforeValidator(_parse_gpu)]
MemoryNodes = Annotated[tuple[Whole, ...], BeforeValidator(_parse_nodes)]
Rate = Annotated[Whole, BeforeValidator(parse_size), Field(ge=0, le=MOST_BYTES)]
Url = Annotated[str, BeforeValidator(_parse_url)]
Environment = Annotated[dict[str, str], AfterValidator(_parse_environment)]
