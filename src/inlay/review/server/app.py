"""The review page as a web application."""

import json
from importlib import resources

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from inlay.engine.checkpoint import JsonObject
from inlay.errors import InlayError
from inlay.review.server.guard import Guard
from inlay.review.server.session import OutdatedError, Session
from inlay.review.server.state import images_of, map_of, state_of
from inlay.serving.body import read_body
from inlay.serving.refusal import RefusedError

__all__ = ["MOST_BYTES", "create_app"]

MOST_BYTES = 65_536
"""Longest body of a request."""

_FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "style.css": ("style.css", "text/css; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "map.js": ("map.js", "text/javascript; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}


def create_app(session: Session, token: str, port: int) -> ASGIApp:
    """Build the application for a browser on this machine.

    Args:
        session: What is reviewed.
        token: First part of every path; requests without it are refused.
        port: Port that the application will be reached at.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _answer_errors(app)
    _serve_page(app)
    _serve_data(app, session)
    return Guard(app, token, [f"127.0.0.1:{port}", f"localhost:{port}"])


def _serve_page(app: FastAPI) -> None:
    folder = resources.files("inlay.review.server") / "page"
    contents = {address: ((folder / name).read_bytes(), kind) for address, (name, kind) in _FILES.items()}

    def file(address: str) -> Response:
        content, kind = contents[address]
        return Response(content, media_type=kind)

    for address in contents:
        app.get(f"/{address}")(lambda address=address: file(address))


def _serve_data(app: FastAPI, session: Session) -> None:
    @app.get("/api/state")
    def state() -> JsonObject:
        return state_of(session)

    @app.get("/api/map")
    def map() -> JsonObject:
        return map_of(session)

    @app.get("/api/classes/{id}/images")
    def images(id: int, first: int = 0) -> JsonObject:
        return images_of(session, id, max(0, first))

    @app.get("/api/images/{position}")
    def picture(position: int) -> Response:
        content = session.images.picture(position)
        return Response(content, media_type="image/png", headers={"Cache-Control": "private, max-age=600"})

    @app.post("/api/decisions")
    async def decide(request: Request) -> JsonObject:
        body = await _read_json(request)
        if not isinstance(body, dict) or body.keys() != {"decision", "revision"}:
            raise RefusedError(400, "A request has exactly the keys decision and revision; write both.")
        await run_in_threadpool(session.decide, body["decision"], body["revision"])
        return await run_in_threadpool(state_of, session)


async def _read_json(request: Request) -> object:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise RefusedError(415, "The request is not JSON; send it as application/json.")
    try:
        return json.loads(await read_body(request, MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, "The request is not sound JSON; send an object.") from error


def _answer_errors(app: FastAPI) -> None:
    def sentence(status: int, text: str) -> JSONResponse:
        return JSONResponse({"error": text}, status)

    @app.exception_handler(InlayError)
    def inlay_error(request: Request, error: InlayError) -> JSONResponse:
        return sentence(409 if isinstance(error, OutdatedError) else 400, str(error))

    @app.exception_handler(RefusedError)
    def refused(request: Request, error: RefusedError) -> JSONResponse:
        return sentence(error.status, str(error))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return sentence(404, "There is nothing at this address; write a whole number as id.")

    @app.exception_handler(HTTPException)
    def missing(request: Request, error: HTTPException) -> JSONResponse:
        return sentence(error.status_code, "There is nothing at this address; open the page itself.")
