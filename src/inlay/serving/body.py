"""The body of a request, read no further than is allowed."""

import asyncio

from starlette.requests import ClientDisconnect, Request

from inlay.serving.refusal import RefusedError

__all__ = ["read_body"]


async def read_body(request: Request, most_bytes: int, most_seconds: float | None = None) -> bytes:
    """Read the body of a request; no more of it than allowed is ever held.

    Args:
        request: The request.
        most_bytes: Longest body.
        most_seconds: Time to wait for it; None waits for as long as it takes.

    Raises:
        RefusedError: If it is longer or slower, or the other side is gone.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(most_seconds):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise RefusedError(413, f"The request is too long; send at most {most_bytes:,} bytes.")
    except TimeoutError as error:
        raise RefusedError(
            408, f"The request did not arrive within {most_seconds:g} seconds; send it again, or less of it."
        ) from error
    except ClientDisconnect as error:
        raise RefusedError(400, "The request ended before it was whole; send it again.") from error
    return bytes(body)
