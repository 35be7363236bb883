"""Settings that cannot be: the variable, what it holds and what it should hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from farm.errors import InvalidInput
from farm.settings import settings


@pytest.fixture(autouse=True)
def _read_anew() -> Iterator[None]:
    settings.cache_clear()
    yield
    settings.cache_clear()


def test_a_value_of_the_wrong_type_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_LEASE_S", "soon")
    with pytest.raises(InvalidInput, match=r"FARM_LEASE_S is 'soon': .*number"):
        settings()
