"""The Host header is checked, so that a page elsewhere cannot reach the farm by rebinding a name."""

from __future__ import annotations

import ipaddress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api import problems
from farm.settings import Settings

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def allowed_hosts(settings: Settings) -> frozenset[str]:
    """The loopback names, the address that the API binds to, and ``FARM_ALLOWED_HOSTS``. Lower case.

    A wildcard address (``0.0.0.0``) adds nothing: name the hosts that people type.
    """
    names = set(LOOPBACK)
    bound = host_name(settings.listen)
    if bound and not _is_wildcard(bound):
        names.add(bound)
    names |= {host_name(item.strip()) for item in settings.allowed_hosts.split(",") if item.strip()}
    return frozenset(names)


def host_name(value: str) -> str:
    """A Host header's name without its port, lower case, IPv6 in brackets."""
    value = value.strip().lower()
    if value.startswith("["):
        return value.partition("]")[0] + "]"
    if value.count(":") > 1:
        return f"[{value}]"
    return value.partition(":")[0].rstrip(".")


def _is_wildcard(name: str) -> bool:
    try:
        return ipaddress.ip_address(name.strip("[]")).is_unspecified
    except ValueError:
        return False


class HostCheck:
    """Answers 421 to a request that was meant for another host."""

    def __init__(self, app: ASGIApp, allowed: frozenset[str]) -> None:
        self.app = app
        self.allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).getlist("host")
        if len(given) == 1 and host_name(given[0]) in self.allowed:
            await self.app(scope, receive, send)
            return
        name = given[0][:100] if given else ""
        answer = problems.response(
            421,
            "wrong-host",
            f"this farm does not answer to the host {name!r}; "
            f"add it to FARM_ALLOWED_HOSTS if it is meant to be reached by that name",
            request_id=scope.get("state", {}).get("request_id"),
        )
        await answer(scope, receive, send)
