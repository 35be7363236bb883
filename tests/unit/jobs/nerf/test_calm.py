"""Tiny numbers are flushed for a task of this kind and for nobody after it."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra [nerf])")

from jobs.nerf.calm import tiny_flushed


def half_of_the_least() -> float:
    """Half of the least normal number: zero only where such numbers are flushed."""
    return sys.float_info.min / float("2")


def test_tiny_numbers_are_numbers_again_after_a_task_however_it_ends() -> None:
    with tiny_flushed():
        assert half_of_the_least() == 0.0
    assert half_of_the_least() > 0.0
    with pytest.raises(RuntimeError), tiny_flushed():
        raise RuntimeError
    assert half_of_the_least() > 0.0
