import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote_from_bytes

from starlette.testclient import TestClient

REQUESTS = 1000
PIECES = [
    b"",
    b"\x00",
    b"\xff",
    b"\r\n",
    b"--",
    b"\r\n--cut\r\n",
    b"\r\n--cut--",
    b'"',
    b";",
    b"..",
    b"9" * 30,
    b"[",
    b"{",
]
KINDS = [b"multipart/form-data; boundary=cut", b"image/png", b"application/json", b"application/octet-stream"]
ADDRESSES = [b"/predict", b"/predict?top=3", b"/predict?top=5", b"/classes", b"/info"]


def _mutated(whole: bytes, chance: random.Random, most: int = 3) -> bytes:
    for _ in range(chance.randint(0, most)):
        first = chance.randint(0, len(whole))
        last = min(len(whole), first + chance.randint(0, 8))
        whole = whole[:first] + chance.choice(PIECES) + whole[last:]
    return whole


def _bodies(files: list[Path]) -> list[bytes]:
    form = b""
    for file in files[:3]:
        form += b'--cut\r\nContent-Disposition: form-data; name="images"; filename="' + file.name.encode()
        form += b'"\r\nContent-Type: image/png\r\n\r\n' + file.read_bytes() + b"\r\n"
    pixels = str([[[7] * 8] * 8] * 2).encode()
    return [form + b"--cut--\r\n", files[0].read_bytes(), b'{"pixels": ' + pixels + b"}", files[1].read_bytes()]


def _header(value: bytes) -> bytes:
    """What can be sent as a header at all."""
    return bytes(byte for byte in value if byte >= 32 and byte != 127).strip()


def _content(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_mutated_requests_are_answered_or_refused_in_one_sentence(
    ask: Callable[..., TestClient], finished: Path, files: list[Path]
) -> None:
    """A failure of the server would be raised here."""
    chance, client, bodies = random.Random(0), ask(bytes=100_000), _bodies(files)
    before = _content(finished)
    statuses = set()
    for number in range(REQUESTS):
        which = number % len(bodies)
        address = chance.choice(ADDRESSES[:3])
        if number % 10 == 0:
            address = _mutated(chance.choice(ADDRESSES), chance)
        kind = _header(_mutated(KINDS[which], chance, 1 if number % 3 == 0 else 0))
        # The head of an image or of a form is where its structure is.
        body = (
            _mutated(bodies[which][:200], chance) + bodies[which][200:]
            if number % 2
            else _mutated(bodies[which], chance)
        )
        method = "GET" if number % 25 == 0 else "POST"
        answer = client.request(
            method,
            "/" + quote_from_bytes(address, safe="/?=&%").lstrip("/"),
            content=body if chance.random() < 0.95 else body * 300,
            headers=[(b"Content-Type", kind)],
        )
        statuses.add(answer.status_code)
        assert answer.status_code < 500
        if answer.status_code == 200:
            assert answer.json()
        else:
            assert list(answer.json()) == ["error"]
            assert answer.json()["error"].endswith(".")
            assert str(finished.parent) not in answer.text
    assert {200, 400, 404, 405, 413, 415, 422} <= statuses
    assert _content(finished) == before
