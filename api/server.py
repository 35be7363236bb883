"""Running the API under uvicorn, so that SIGTERM ends it in seconds even with open streams.

uvicorn waits for open responses before it runs the application's shutdown; event streams would hold it up.
So the live feed is closed first, which ends every stream, and a time limit stands behind that.
"""

from __future__ import annotations

import ipaddress
import socket

import structlog
import uvicorn
from fastapi import FastAPI

from api.services import Services
from farm.errors import InvalidInput

GRACE_S = 5

log = structlog.get_logger(__name__)


class Server(uvicorn.Server):
    """uvicorn that ends event streams before it waits for responses."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then do as uvicorn does."""
        app = self.config.app
        if isinstance(app, FastAPI) and isinstance(services := app.state.services, Services):
            services.feed.close()
        await super().shutdown(sockets)


def split_address(listen: str) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:8630`` or ``[::1]:8630``; port 0 lets the system choose.

    Raises :class:`farm.errors.InvalidInput`.
    """
    host, colon, port = listen.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise InvalidInput(f"FARM_LISTEN {listen!r}: write HOST:PORT, such as 127.0.0.1:8630")
    return host, int(port)


def make_server(app: FastAPI, listen: str, *, log_level: str = "info") -> Server:
    """A server for this application; run it with ``run()`` (blocking) or ``serve()`` (on a loop).

    An address outside the loopback interface is served as asked, with a warning: keys travel in the clear
    unless something in front speaks TLS.
    """
    host, port = split_address(listen)
    if not _is_loopback(host):
        log.warning("listening beyond this machine without TLS; put a TLS proxy in front", host=host)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level=log_level,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=30,
        proxy_headers=False,
        lifespan="on",
    )
    return Server(config)


def run(app: FastAPI, listen: str, *, log_level: str = "info") -> None:
    """Serve until SIGINT or SIGTERM."""
    make_server(app, listen, log_level=log_level).run()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
