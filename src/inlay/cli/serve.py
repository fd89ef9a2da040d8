"""The command that answers requests for predictions."""

import re
import secrets
from contextlib import suppress
from typing import Annotated

import typer

from inlay.cli.options import Device, Run
from inlay.cli.shown import console, errors
from inlay.engine.world import World
from inlay.errors import InlayError

__all__ = ["serve"]

# What a header can hold, and long enough not to be guessed.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,}")
_BYTES_PER_MEGABYTE = 1_000_000


def serve(
    run: Run,
    host: Annotated[str, typer.Option(help="Address to listen at; others than this machine's own need --token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port to listen at; 0 takes a free one.", min=0, max=65535)] = 8000,
    token: Annotated[
        str | None, typer.Option(help="Text that every request has to carry.", envvar="INLAY_TOKEN")
    ] = None,
    max_upload: Annotated[int, typer.Option(help="Longest request in megabytes.", min=1, max=1000)] = 20,
    device: Device = "auto",
) -> None:
    """Answer requests for predictions over HTTP.

    Example: inlay serve shop.inlay
    """
    if World.current().size > 1:
        raise InlayError("Predictions are served by one process; start it with `inlay serve`, without torchrun.")
    try:
        from inlay.serving.app import create_app
        from inlay.serving.guard import is_local
        from inlay.serving.limits import Limits
        from inlay.serving.listening import answer, listening
        from inlay.serving.model import ServedModel
    except ModuleNotFoundError as error:
        raise InlayError(
            f"Serving predictions needs the package {error.name}; install it with `pip install 'inlay[serve]'`."
        ) from error
    _check_token(token, is_local(host), host)
    # Ctrl-C is how the server is stopped.
    with suppress(KeyboardInterrupt), listening(host, port, "Predictions") as listener:
        model = ServedModel(run, device, errors.print)
        place = f"[{host}]" if ":" in host else host
        console.print(f"Predictions are served at http://{place}:{listener.getsockname()[1]}; stop it with Ctrl-C.")
        answer(create_app(model, Limits(bytes=max_upload * _BYTES_PER_MEGABYTE), token), listener)
    console.print(str(run))


def _check_token(token: str | None, local: bool, host: str) -> None:
    if token is None and not local:
        raise InlayError(
            f"Others can reach {host}, so a token is needed; write for example --token {secrets.token_urlsafe(24)}."
        )
    if token is not None and not _TOKEN.fullmatch(token):
        raise InlayError(
            "The token must have at least 16 letters, digits or characters of -._~+/=; write for example --token "
            f"{secrets.token_urlsafe(24)}."
        )
