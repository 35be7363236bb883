from __future__ import annotations

import socket

import pytest

from api.cli.running.listen import bind, listen_text, parse_listen, url_of
from farm.errors import Conflict, InvalidInput


@pytest.mark.parametrize(
    ("listen", "parsed"),
    [("127.0.0.1:8630", ("127.0.0.1", 8630)), ("[::1]:0", ("::1", 0)), ("localhost:80", ("localhost", 80))],
)
def test_addresses_are_read(listen: str, parsed: tuple[str, int]) -> None:
    assert parse_listen(listen) == parsed


@pytest.mark.parametrize(
    "listen", ["", "8630", ":8630", "127.0.0.1:", "127.0.0.1:x", "h:70000", "::1:80", "h:\uff18\uff10"]
)
def test_a_bad_address_names_farm_listen(listen: str) -> None:
    with pytest.raises(InvalidInput, match="FARM_LISTEN"):
        parse_listen(listen)


def test_a_port_in_use_names_farm_listen_and_another_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Conflict, match=rf"127\.0\.0\.1:{port} is in use.*FARM_LISTEN=127\.0\.0\.1:"):
            bind(f"127.0.0.1:{port}")


def test_port_zero_takes_a_free_one_and_says_which() -> None:
    with bind("127.0.0.1:0") as bound:
        port = bound.getsockname()[1]
        assert listen_text(bound) == f"127.0.0.1:{port}"
        assert url_of(bound) == f"http://127.0.0.1:{port}"


def test_a_wildcard_is_shown_as_loopback() -> None:
    with bind("0.0.0.0:0") as bound:
        assert url_of(bound).startswith("http://127.0.0.1:")
