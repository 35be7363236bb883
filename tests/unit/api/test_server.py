"""Addresses that the API binds to."""

from __future__ import annotations

import pytest

from api.server import split_address
from farm.errors import InvalidInput


def test_addresses_are_split() -> None:
    assert split_address("127.0.0.1:8630") == ("127.0.0.1", 8630)
    assert split_address("[::1]:0") == ("::1", 0)


@pytest.mark.parametrize("listen", ["", "8630", ":8630", "localhost", "localhost:x", "localhost:70000"])
def test_other_text_is_refused_naming_the_setting(listen: str) -> None:
    with pytest.raises(InvalidInput, match="FARM_LISTEN"):
        split_address(listen)
