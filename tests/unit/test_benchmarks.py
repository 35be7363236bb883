"""What ``make bench`` runs is there."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.benchmarks.__main__ import ANY_MACHINE, main


@pytest.mark.parametrize("name", ANY_MACHINE)
def test_each_benchmark_of_make_bench_is_a_module(name: str) -> None:
    assert find_spec(f"tests.benchmarks.{name}") is not None


def test_a_benchmark_that_fails_fails_make_bench(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["no_such_benchmark"]) == 1
    assert "missed or failed: no_such_benchmark" in capfd.readouterr().err
