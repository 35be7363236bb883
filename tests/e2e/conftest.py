"""A farm and a Chromium for the tests of the dashboard."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.e2e.farms import Up

FLAGS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="package")
def farm_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A running `farm up`, shared by the tests of the dashboard."""
    up = Up(tmp_path_factory.mktemp("dashboard"))
    try:
        yield up.start()
    finally:
        up.stop()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program is not None, "install chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose path is short enough for a broker's socket."""
    return tmp_path
