"""The address that the API answers on. It is bound once, by `farm up`, and outlives restarts of the API."""

from __future__ import annotations

import errno
import os
import socket

from farm.errors import Conflict, InvalidInput

FD_VARIABLE = "FARM_LISTEN_FD"
BACKLOG = 512


def parse_listen(listen: str) -> tuple[str, int]:
    """``HOST:PORT`` (IPv6 in brackets) as host and port; raises :class:`farm.errors.InvalidInput`."""
    host, colon, port = listen.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    plain = colon and bare and port.isascii() and port.isdigit() and (bracketed or ":" not in bare)
    if not plain or int(port) > 65535:
        raise InvalidInput(f"FARM_LISTEN is {listen!r}; it must be HOST:PORT, such as 127.0.0.1:8630")
    return bare, int(port)


def bind(listen: str) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises errors that name FARM_LISTEN."""
    host, port = parse_listen(listen)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise InvalidInput(f"FARM_LISTEN names the host {host!r}: {error.strerror}") from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                f"{listen} is in use by another program (another farm?): stop that one, or choose another "
                f"address, such as FARM_LISTEN={host}:{port + 1 if port < 65535 else 8631}"
            ) from None
        raise InvalidInput(f"cannot listen on FARM_LISTEN {listen}: {error.strerror}") from None
    return bound


def inherited() -> socket.socket | None:
    """The socket that `farm up` bound for this process, if it did."""
    number = os.environ.pop(FD_VARIABLE, None)
    return socket.socket(fileno=int(number)) if number else None


def listen_text(bound: socket.socket) -> str:
    """``HOST:PORT`` that a socket is really bound to."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def url_of(bound: socket.socket) -> str:
    """Address for people on this machine; a wildcard address becomes the loopback one."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
