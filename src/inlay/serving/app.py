"""Predictions as a web application."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from inlay.engine.checkpoint import JsonObject
from inlay.errors import InlayError
from inlay.serving.body import read_body
from inlay.serving.guard import Guard
from inlay.serving.limits import Limits
from inlay.serving.model import ServedModel
from inlay.serving.refusal import RefusedError
from inlay.serving.uploads import read_uploads

__all__ = ["create_app"]


def create_app(model: ServedModel, limits: Limits, token: str | None) -> ASGIApp:
    """Build the application.

    Args:
        model: Who predicts.
        limits: How much a request may ask for.
        token: What requests have to carry; None asks for none, and lets those in that name this machine as host.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    _answer_errors(app)
    _answer_questions(app, model, limits)
    _predict(app, model, limits)
    return Guard(app, token)


class _Places:
    """Places for requests that are under way, given out by the one thread that reads them."""

    def __init__(self, number: int) -> None:
        self._free = number

    @contextmanager
    def taken(self) -> Iterator[None]:
        if self._free == 0:
            raise RefusedError(503, "Too many requests are waiting; ask again in a moment.")
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


def _predict(app: FastAPI, model: ServedModel, limits: Limits) -> None:
    places = _Places(limits.requests)

    def predicted(kind: str, body: bytes, top: int) -> JSONResponse:
        found = model.predict(read_uploads(kind, body, limits.images), top, limits.seconds)
        return JSONResponse({"predictions": found})

    @app.post("/predict")
    async def predict(request: Request, top: Annotated[int, Query(ge=1)] = 5) -> JSONResponse:
        with places.taken():
            body = await read_body(request, limits.bytes, limits.seconds)
            return await run_in_threadpool(predicted, request.headers.get("content-type", ""), body, top)


def _answer_questions(app: FastAPI, model: ServedModel, limits: Limits) -> None:
    @app.get("/classes")
    def classes() -> JsonObject:
        return model.classes()

    @app.get("/info")
    def info() -> JsonObject:
        return {**model.info(), "limits": limits.to_json()}

    @app.get("/health")
    async def health() -> JsonObject:
        return {"status": "ok"}


def _answer_errors(app: FastAPI) -> None:
    def sentence(status: int, text: str) -> JSONResponse:
        return JSONResponse({"error": text}, status)

    @app.exception_handler(InlayError)
    def inlay_error(request: Request, error: InlayError) -> JSONResponse:
        return sentence(422, str(error))

    @app.exception_handler(RefusedError)
    def refused(request: Request, error: RefusedError) -> JSONResponse:
        return sentence(error.status, str(error))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return sentence(422, "The number of classes to name is not understood; write top as a whole number from 1.")

    @app.exception_handler(HTTPException)
    def missing(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            answer = sentence(405, f"This address does not take {request.method}; send {allowed}.")
        else:
            answer = sentence(
                error.status_code, "There is nothing at this address; ask /predict, /classes, /info or /health."
            )
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    def failed(request: Request, error: Exception) -> JSONResponse:
        return sentence(500, "The server failed at this request; the terminal that it was started in says why.")
