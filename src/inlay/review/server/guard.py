"""Who may talk to the page: those with its address, by a browser that was sent to this machine."""

from collections.abc import Collection
from secrets import compare_digest

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from inlay.serving.headers import with_headers

__all__ = ["Guard"]


class Guard:
    """Lets requests through whose path begins with the token and whose host is one of this machine.

    Checking the host keeps out pages of others that let their own name point to this machine.

    Args:
        app: Who answers; it sees paths without the token.
        token: First part of every path.
        hosts: Values of the header Host that are allowed, with port.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Collection[str]) -> None:
        self._app, self._token, self._hosts = app, token, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answered(scope, receive, with_headers(send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, token, *rest = scope["path"].split("/", 2) if scope["path"].startswith("/") else ("", "")
        known = compare_digest(token.encode("utf-8", "replace"), self._token.encode())
        if not known or Headers(scope=scope).getlist("host") not in [[host] for host in self._hosts]:
            sentence = "This is not the address of the page; open the one that `inlay review` has printed."
            await JSONResponse({"error": sentence}, 403)(scope, receive, send)
        elif not rest:
            await RedirectResponse(f"/{self._token}/")(scope, receive, send)
        else:
            path = f"/{rest[0]}"
            await self._app({**scope, "path": path, "raw_path": path.encode("utf-8", "replace")}, receive, send)
