"""The Host header: loopback names, the bound address and those that were named."""

from __future__ import annotations

import pytest

from api.middleware.hosts import allowed_hosts, host_name
from farm.settings import Settings


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"),
        ("LocalHost:8630", "localhost"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("[::1]:8630", "[::1]"),
        ("::1", "[::1]"),
        ("farm.example.", "farm.example"),
        ("", ""),
    ],
)
def test_names_are_read_without_port_and_case(header: str, name: str) -> None:
    assert host_name(header) == name


def test_a_bound_address_and_named_hosts_are_answered() -> None:
    settings = Settings(listen="10.0.0.5:8630", allowed_hosts="farm.example:443, Render.example")
    assert allowed_hosts(settings) == {
        "localhost", "127.0.0.1", "[::1]", "10.0.0.5", "farm.example", "render.example",
    }  # fmt: skip


@pytest.mark.parametrize("listen", ["0.0.0.0:8630", "[::]:8630"])
def test_a_wildcard_address_adds_no_host(listen: str) -> None:
    assert allowed_hosts(Settings(listen=listen)) == {"localhost", "127.0.0.1", "[::1]"}
