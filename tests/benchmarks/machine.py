"""What a benchmark ran on, and how its figures are printed and judged."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil


def hardware() -> str:
    """One line on this machine: processor, cores, memory, load."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure; ``bound`` is the most (or, with ``least``, the least) that it may be."""

    name: str
    value: float
    unit: str
    bound: float | None = None
    least: bool = False

    @property
    def kept(self) -> bool:
        """Whether the bound holds."""
        if self.bound is None:
            return True
        return self.value >= self.bound if self.least else self.value <= self.bound

    def __str__(self) -> str:
        text = f"{self.name:<58} {self.value:>10.3f} {self.unit:<8}"
        if self.bound is not None:
            sign = ">=" if self.least else "<="
            text += f" {sign} {self.bound:g} {'ok' if self.kept else 'MISSED'}"
        return text


def judge(figures: list[Figure]) -> int:
    """Print the machine and the figures; 1 where a bound is missed, else 0."""
    print(hardware())
    for figure in figures:
        print(figure)
    return 0 if all(figure.kept for figure in figures) else 1
