import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

from inlay.review.server.app import MOST_BYTES

TOKEN, PORT = "a-token-for-tests", 8765
PATHS = ["", "page.js", "style.css", "api/state", "api/map", "api/images/0", "api/classes/3/images"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "prefix", ["/", "/wrong/", f"/{TOKEN}x/", f"/{TOKEN[:-1]}/", f"/x/{TOKEN}/", f"//{TOKEN}/", "/ü/"]
)
def test_without_the_token_nothing_is_told(untouched: Any, prefix: str, path: str) -> None:
    answer = untouched.client.get(prefix + path, headers={"Cookie": f"token={TOKEN}"})
    assert answer.status_code == 403
    assert list(answer.json()) == ["error"]


def test_without_the_token_nothing_is_decided(untouched: Any) -> None:
    body = json.dumps({"decision": {"decision": "reject", "id": 3}, "revision": 0})
    for path in ("/api/decisions", "/wrong/api/decisions", f"/api/decisions?token={TOKEN}"):
        answer = untouched.client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 403
    assert untouched.state()["revision"] == 0


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", "", "0.0.0.0:8765"]
)
def test_another_host_is_refused(untouched: Any, host: str) -> None:
    assert untouched.client.get(f"/{TOKEN}/api/state", headers={"Host": host}).status_code == 403


def test_the_local_names_of_this_machine_are_allowed(untouched: Any) -> None:
    for host in ("127.0.0.1", "localhost"):
        assert untouched.client.get(f"/{TOKEN}/", headers={"Host": f"{host}:{PORT}"}).status_code == 200


def test_the_address_without_its_last_slash_leads_to_the_page(untouched: Any) -> None:
    assert untouched.client.get(f"/{TOKEN}").url.path == f"/{TOKEN}/"


@pytest.mark.parametrize("path", [*PATHS, "nowhere", "../x"])
def test_every_answer_forbids_outside_hosts_and_other_origins(untouched: Any, path: str) -> None:
    answer = untouched.client.get(f"/{TOKEN}/{path}", headers={"Origin": "http://evil.example"})
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_question_of_another_origin_is_not_allowed_beforehand(untouched: Any) -> None:
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answer = untouched.client.options(f"/{TOKEN}/api/decisions", headers=asked)
    assert answer.status_code == 405
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"decision": {"decision": "undo"}}',
        b'{"revision": 0}',
        b'{"decision": {"decision": "undo"}, "revision": 0, "more": 1}',
        b'{"decision": {"decision": "rename", "id": NaN, "name": "a"}, "revision": 0}',
        b'{"decision": {"decision": "reject", "id": ' + b"9" * 5000 + b'}, "revision": 0}',
    ],
)
def test_malformed_requests_are_refused_in_one_sentence(untouched: Any, body: bytes) -> None:
    answer = untouched.sent(body)
    assert answer.status_code == 400
    assert answer.json()["error"].endswith(".")
    assert untouched.state()["revision"] == 0


@pytest.mark.parametrize("revision", [-1, 1, "0", None, [], 0.5])
def test_a_revision_that_was_never_shown_is_refused(untouched: Any, revision: object) -> None:
    answer = untouched.sent(json.dumps({"decision": {"decision": "reject", "id": 3}, "revision": revision}))
    assert answer.status_code == 409


def test_other_types_than_json_are_refused(untouched: Any) -> None:
    body = json.dumps({"decision": {"decision": "reject", "id": 3}, "revision": 0})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert untouched.sent(body, kind).status_code == 415
    assert untouched.state()["revision"] == 0


def test_an_oversized_body_is_refused_with_or_without_a_stated_length(untouched: Any) -> None:
    whole = json.dumps({"decision": {"decision": "rename", "id": 3, "name": "x" * MOST_BYTES}, "revision": 0}).encode()

    def parts() -> Iterator[bytes]:
        for first in range(0, len(whole), 1000):
            yield whole[first : first + 1000]

    for content in (whole, parts()):
        answer = untouched.client.post(
            f"/{TOKEN}/api/decisions", content=content, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 413
        assert f"{MOST_BYTES:,} bytes" in answer.json()["error"]


@pytest.mark.parametrize(
    "path",
    [
        "api/images/..%2F..%2F..%2Fetc%2Fpasswd",
        "api/images/../../../../etc/passwd",
        "api/images/%2Fetc%2Fpasswd",
        "api/images/-1",
        "api/images/90",
        "api/images/1e3",
        "api/images/0x1",
        "api/images/" + "9" * 5000,
        "api/images/",
        "api/classes/99/images",
        "api/classes/-1/images",
        "api/classes/../../images",
        "api/classes/0/images",
        "api/classes/3/images?first=x",
        "../digits.inlay/inlay.json",
        "page/index.html",
        "app.py",
        "..%2Fapp.py",
        "docs",
        "openapi.json",
    ],
)
def test_wrong_addresses_and_paths_out_of_the_page_are_refused_in_one_sentence(untouched: Any, path: str) -> None:
    answer = untouched.client.get(f"/{TOKEN}/{path}")
    assert answer.status_code in (400, 403, 404)
    assert answer.json()["error"].endswith(".")


def test_the_page_names_no_outside_host_and_has_no_inline_code(untouched: Any) -> None:
    found: list[tuple[str, dict[str, str | None]]] = []

    class Collector(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, dict(attrs)))

    page = untouched.client.get(f"/{TOKEN}/").text
    Collector().feed(page)
    for name in ("", "page.js", "map.js", "style.css", "icon.svg"):
        text = untouched.client.get(f"/{TOKEN}/{name}").text
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", text)
    for tag, attributes in found:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert tag != "style"
        assert tag != "script" or attributes.get("src")
    ids = [attributes["id"] for _, attributes in found if "id" in attributes]
    assert len(ids) == len(set(ids))
    script = untouched.client.get(f"/{TOKEN}/page.js").text
    assert set(re.findall(r'byId\("([\w-]+)"\)', script)) <= set(ids)
