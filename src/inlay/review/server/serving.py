"""Serving the review page to a browser on this machine."""

import secrets
import socket
from collections.abc import Callable

import uvicorn

from inlay.errors import InlayError
from inlay.review.server.app import create_app
from inlay.review.server.session import Session

__all__ = ["serve"]

_ADDRESS = "127.0.0.1"


def serve(session: Session, port: int, on_address: Callable[[str], None]) -> None:
    """Serve the page until the process is told to stop.

    Args:
        session: What is reviewed.
        port: Port to listen at; 0 takes a free one.
        on_address: Called with the address of the page as soon as it can be opened.

    Raises:
        InlayError: If the port is taken or not allowed.
    """
    with socket.socket() as listener:
        try:
            listener.bind((_ADDRESS, port))
            listener.listen()
        except (OSError, OverflowError) as error:
            raise InlayError(
                f"The page cannot be served at port {port} ({error}); write another --port, or 0."
            ) from error
        port, token = listener.getsockname()[1], secrets.token_urlsafe(24)
        # Access logs would hold the token.
        config = uvicorn.Config(
            create_app(session, token, port),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=3,
        )
        on_address(f"http://{_ADDRESS}:{port}/{token}/")
        uvicorn.Server(config).run(sockets=[listener])
