from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from inlay.serving.guard import is_local

Ask = Callable[..., TestClient]
TOKEN = "a-token-for-tests"
PATHS = ["/info", "/classes", "/predict", "/nowhere", "/"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "given",
    ["", TOKEN, "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer \xff"],
)
def test_without_the_token_nothing_is_told(ask: Ask, path: str, given: str) -> None:
    headers = [(b"Authorization", given.encode("latin-1"))] if given else []
    for method in ("GET", "POST"):
        answer = ask(token=TOKEN).request(method, f"{path}?token={TOKEN}", headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json() == {"error": "The token is missing or wrong; send the header Authorization: Bearer TOKEN."}


def test_two_tokens_are_none(ask: Ask) -> None:
    headers = [("Authorization", "Bearer wrong"), ("Authorization", f"Bearer {TOKEN}")]
    assert ask(token=TOKEN).get("/info", headers=headers).status_code == 401


def test_with_the_token_any_host_may_ask(ask: Ask) -> None:
    for given in (f"Bearer {TOKEN}", f"bearer  {TOKEN}"):
        headers = {"Authorization": given, "Host": "predictions.example"}
        assert ask(token=TOKEN).get("/info", headers=headers).status_code == 200


def test_health_needs_no_token(ask: Ask) -> None:
    assert ask(token=TOKEN).get("/health").status_code == 200


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:8000", "127.3.2.1", "[::1]:8000"])
def test_without_a_token_this_machine_may_ask(client: TestClient, host: str) -> None:
    assert client.get("/info", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "0.0.0.0:8000", "", "127.0.0.1.evil"])
def test_without_a_token_other_names_of_this_machine_are_refused(client: TestClient, host: str) -> None:
    for path in ("/info", "/health"):
        answer = client.get(path, headers={"Host": host})
        assert (answer.status_code, list(answer.json())) == (403, ["error"])


def test_other_origins_are_not_let_in(client: TestClient) -> None:
    answer = client.get("/info", headers={"Origin": "http://evil.example"})
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-store"
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("host", "local"),
    [("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "192.168.1.2", "example.org", "", "127.1.evil")],
)
def test_which_addresses_only_this_machine_reaches(host: str, local: bool) -> None:
    assert is_local(host) is local
