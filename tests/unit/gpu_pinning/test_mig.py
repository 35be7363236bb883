"""HAMi 2131: MIG creation exits 0 and makes nothing. The result counts, not the exit code."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpu_pinning.errors import MigError
from gpu_pinning.machine import MigInstance
from gpu_pinning.mig import ensure_instances


def instance(profile: str, number: int) -> MigInstance:
    return MigInstance(
        uuid=f"MIG-{number}", profile=profile, gpu_instance=number, compute_instance=0, memory_bytes=1
    )


def test_a_tool_that_exits_0_and_makes_nothing_is_an_error() -> None:
    with pytest.raises(MigError, match=r"1g\.5gb was not made; nvidia-smi ended with 0: Success"):
        ensure_instances("GPU-1", ["1g.5gb"], lambda: (), run=lambda _: (0, "Successfully created"))


def test_what_is_there_is_not_made_again() -> None:
    def run(argv: Sequence[str]) -> tuple[int, str]:
        raise AssertionError("nothing is missing")

    there = (instance("1g.5gb", 0), instance("2g.10gb", 1))
    assert ensure_instances("GPU-1", ["1g.5gb"], lambda: there, run=run) == there


def test_only_what_is_missing_is_made_and_a_bad_exit_code_that_made_it_is_fine() -> None:
    there = [instance("1g.5gb", 0)]
    calls: list[Sequence[str]] = []

    def run(argv: Sequence[str]) -> tuple[int, str]:
        calls.append(argv)
        there.append(instance("1g.5gb", 1))
        there.append(instance("3g.20gb", 2))
        return 1, "warning"

    made = ensure_instances("GPU-1", ["1g.5gb", "1g.5gb", "3g.20gb"], lambda: tuple(there), run=run)
    assert len(made) == 3
    assert calls == [["nvidia-smi", "mig", "-i", "GPU-1", "-cgi", "1g.5gb,3g.20gb", "-C"]]


def test_a_missing_tool_is_named() -> None:
    with pytest.raises(MigError, match="nvidia-smi"):
        ensure_instances("GPU-1", ["7g.80gb"], lambda: ())
