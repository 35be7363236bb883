"""Settings that cannot be: the variable, what it holds and what it should hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.client.credentials import key_file
from farm.errors import InvalidInput
from farm.settings import Settings, settings


@pytest.fixture(autouse=True)
def _read_anew() -> Iterator[None]:
    settings.cache_clear()
    yield
    settings.cache_clear()


def test_a_value_of_the_wrong_type_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_LEASE_S", "soon")
    with pytest.raises(InvalidInput, match=r"FARM_LEASE_S is 'soon': .*number"):
        settings()


@pytest.mark.parametrize(
    ("store_url", "logs"),
    [
        ("", "/data/logs"),
        ("/mnt/farm", "/mnt/farm/logs"),
        ("file:///mnt/farm", "/mnt/farm/logs"),
        ("s3://bucket/farm", "/data/logs"),
    ],
)
def test_logs_and_previews_follow_a_store_that_is_a_folder(store_url: str, logs: str) -> None:
    settings = Settings(data=Path("/data"), store_url=store_url)
    assert settings.logs == Path(logs)
    assert settings.previews == Path(logs).parent / "previews", "an API on another machine shows them"


def test_tests_read_nothing_of_the_home_folder() -> None:
    assert not settings().data.is_relative_to(Path.home())
    assert not key_file().is_relative_to(Path.home())
