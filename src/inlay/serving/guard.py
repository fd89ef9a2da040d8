"""Who may ask for predictions: those with the token, or without one those on this machine."""

import ipaddress
from secrets import compare_digest

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from inlay.serving.headers import with_headers

__all__ = ["Guard", "is_local"]

_OPEN = "/health"


def is_local(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Lets requests through that carry the token.

    Without a token the header Host must name this machine, which keeps out pages of others that let their own name
    point to it.

    Args:
        app: Who answers.
        token: What a request has to carry as `Authorization: Bearer TOKEN`; None asks for none.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, with_headers(send))

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        if self._token is None:
            hosts = headers.getlist("host")
            if len(hosts) == 1 and is_local(_without_port(hosts[0])):
                return None
            return JSONResponse({"error": "This server answers to localhost and 127.0.0.1 alone; ask there."}, 403)
        if scope["path"] == _OPEN or _carries(headers, self._token):
            return None
        sentence = "The token is missing or wrong; send the header Authorization: Bearer TOKEN."
        return JSONResponse({"error": sentence}, 401, {"WWW-Authenticate": "Bearer"})


def _carries(headers: Headers, token: str) -> bool:
    scheme, _, given = ",".join(headers.getlist("authorization")).partition(" ")
    return scheme.lower() == "bearer" and compare_digest(given.strip().encode("latin-1"), token.encode())


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
