"""Serving the review page to a browser on this machine."""

import secrets
from collections.abc import Callable

from inlay.review.server.app import create_app
from inlay.review.server.session import Session
from inlay.serving.listening import LOCAL, answer, listening

__all__ = ["serve"]


def serve(session: Session, port: int, on_address: Callable[[str], None]) -> None:
    """Serve the page until the process is told to stop.

    Args:
        session: What is reviewed.
        port: Port to listen at; 0 takes a free one.
        on_address: Called with the address of the page as soon as it can be opened.

    Raises:
        InlayError: If the port is taken or not allowed.
    """
    with listening(LOCAL, port, "The page") as listener:
        port, token = listener.getsockname()[1], secrets.token_urlsafe(24)
        on_address(f"http://{LOCAL}:{port}/{token}/")
        answer(create_app(session, token, port), listener)
