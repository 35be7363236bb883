"""Hosts with the small scene; everything here needs the extra `render`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.render.sandbox import confinement
from tests.integration.jobs.scenes import write_scene
from tests.unit.jobs.local_host import LocalHost

collect_ignore = [] if importlib.util.find_spec("mitsuba") else ["test_render.py", "test_meshes.py"]


@pytest.fixture
def scene(tmp_path: Path) -> dict[str, Path]:
    """The small scene's files."""
    return write_scene(tmp_path / "source")


@pytest.fixture
def host(tmp_path: Path, scene: dict[str, Path]) -> LocalHost:
    """A host of a job with the small scene."""
    return LocalHost(tmp_path / "host", scene)


@pytest.fixture(params=["bubblewrap", "plain"])
def confined(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both confinements, where both work."""
    monkeypatch.setenv("FARM_SANDBOX", "plain" if request.param == "plain" else "auto")
    confinement.cache_clear()
    if confinement().name != request.param:
        reason = confinement().reason
        confinement.cache_clear()
        pytest.skip(f"bubblewrap does not work here: {reason}")
    yield request.param
    confinement.cache_clear()


@pytest.fixture
def make_host(tmp_path: Path) -> Callable[[dict[str, Path]], LocalHost]:
    """Makes a host of a job with other assets."""
    count = iter(range(100))
    return lambda files: LocalHost(tmp_path / f"host-{next(count)}", files)
