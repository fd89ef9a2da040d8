import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from inlay.serving.body import read_body
from inlay.serving.refusal import RefusedError

PART = {"type": "http.request", "body": b"x" * 100, "more_body": True}
LAST = {"type": "http.request", "body": b"y", "more_body": False}


class Sender:
    """Sends messages one by one, then nothing more."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.left = list(messages)

    async def receive(self) -> dict[str, Any]:
        if not self.left:
            await asyncio.Event().wait()
        return self.left.pop(0)

    def read(self, most_bytes: int, most_seconds: float | None = None) -> bytes:
        request = Request({"type": "http", "method": "POST", "headers": []}, self.receive)
        return asyncio.run(read_body(request, most_bytes, most_seconds))


def test_a_body_is_put_together() -> None:
    assert Sender(PART, PART, LAST).read(201) == b"x" * 200 + b"y"


def test_a_body_that_is_too_long_is_read_no_further() -> None:
    sender = Sender(*[PART] * 50, LAST)
    with pytest.raises(RefusedError, match="send at most 1,000 bytes") as refusal:
        sender.read(1000)
    assert refusal.value.status == 413
    assert len(sender.left) == 51 - 11


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    with pytest.raises(RefusedError, match=r"did not arrive within 0\.05 seconds") as refusal:
        Sender(PART).read(1000, 0.05)
    assert refusal.value.status == 408


def test_a_sender_who_is_gone() -> None:
    with pytest.raises(RefusedError, match="ended before it was whole") as refusal:
        Sender(PART, {"type": "http.disconnect"}).read(1000)
    assert refusal.value.status == 400
