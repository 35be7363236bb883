"""A broker of the test's own, started as ``farm up`` starts it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farm.broker.embedded import EmbeddedBroker


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A folder with a short path, so that sockets fit."""
    with tempfile.TemporaryDirectory(prefix="stillframe-") as folder:
        yield Path(folder)


@pytest.fixture
def broker(run_dir: Path) -> Iterator[EmbeddedBroker]:
    """A running embedded broker."""
    with EmbeddedBroker(run_dir) as running:
        yield running


def wait_until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Wait for a condition; fails the test when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come"
        time.sleep(0.02)
