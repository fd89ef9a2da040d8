"""Listening at a port of this machine."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from inlay.errors import InlayError

__all__ = ["LOCAL", "answer", "listening"]

LOCAL = "127.0.0.1"
"""Address that only this machine reaches."""


@contextmanager
def listening(host: str, port: int, what: str) -> Iterator[socket.socket]:
    """Take a port, so that requests wait until they are answered.

    Args:
        host: Address of this machine, or a name of it.
        port: Port to listen at; 0 takes a free one.
        what: What is served, for the error.

    Returns:
        The socket; its second `getsockname()` is the port.

    Raises:
        InlayError: If the address is not one of this machine, or the port is taken or not allowed.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise InlayError(f"There is no host {host!r}; write an address of this machine as --host.") from error
    with socket.socket(family) as listener:
        # Connections of a server that was stopped a moment ago would block its port for a minute.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen()
        except (OSError, OverflowError) as error:
            place = f"port {port}" if host == LOCAL else f"port {port} of {host}"
            raise InlayError(f"{what} cannot be served at {place} ({error}); write another --port, or 0.") from error
        yield listener


def answer(app: ASGIApp, listener: socket.socket) -> None:
    """Answer requests until the process is told to stop.

    Args:
        app: Who answers.
        listener: Where they come in.

    Raises:
        KeyboardInterrupt: If it was told by Ctrl-C, after requests under way had three seconds to end.
    """
    # Access logs would hold tokens that are part of an address.
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=3
    )
    uvicorn.Server(config).run(sockets=[listener])
