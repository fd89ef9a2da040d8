import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from typer.testing import CliRunner

from inlay.cli.app import app
from inlay.cli.serve import serve as command
from inlay.errors import InlayError

TOKEN = "a-token-for-tests"


@pytest.fixture(scope="module")
def process(finished: Path) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-m", "inlay", "serve", finished, "--port=0", "--device=cpu", "--max-upload=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "INLAY_TOKEN": TOKEN},
    )
    yield started
    started.kill()
    started.communicate()


def _asked(address: str, body: bytes | None = None, kind: str = "image/png") -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
    with urlopen(Request(address, body, headers), timeout=60) as answer:
        return json.load(answer)


def _form(files: list[Path]) -> bytes:
    parts = [
        f'--cut\r\nContent-Disposition: form-data; name="images"; filename="{file.name}"\r\n\r\n'.encode()
        + file.read_bytes()
        for file in files
    ]
    return b"\r\n".join([*parts, b"--cut--\r\n"])


def test_the_command_answers_as_predict_does_until_it_is_stopped(
    process: subprocess.Popen[str], finished: Path, files: list[Path]
) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"Predictions are served at (http://127\.0\.0\.1:(\d+)); stop it with Ctrl-C\.\n", line)
    assert found is not None, line
    address, port = found.groups()
    answered = _asked(f"{address}/predict", _form(files), "multipart/form-data; boundary=cut")["predictions"]
    said = CliRunner().invoke(app, ["predict", str(finished), *map(str, files), "--json", "--device=cpu"])
    expected = [json.loads(line) for line in said.stdout.splitlines()]
    assert [row.keys() - {"top"} for row in answered] == [row.keys() for row in expected]
    for row, wanted in zip(answered, expected, strict=True):
        assert row["source"] == Path(wanted["source"]).name
        assert [row[key] for key in ("id", "name", "discovered")] == [
            wanted[key] for key in ("id", "name", "discovered")
        ]
        assert row["probability"] == pytest.approx(wanted["probability"], abs=1e-5)

    assert _asked(f"{address}/health") == {"status": "ok"}
    with pytest.raises(HTTPError, match="401"):
        urlopen(f"{address}/info", timeout=60)
    with pytest.raises(HTTPError, match="413") as refusal:
        _asked(f"{address}/predict", b"x" * 1_000_001)
    assert json.load(refusal.value) == {"error": "The request is too long; send at most 1,000,000 bytes."}
    with socket.create_connection(("127.0.0.1", int(port)), timeout=60) as raw:
        raw.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: nonsense\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    # One who goes away in the middle of a request.
    with socket.create_connection(("127.0.0.1", int(port)), timeout=60) as raw:
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 99\r\n\r\nabc"
        raw.sendall(head.encode())
    assert len(_asked(f"{address}/predict?top=2", files[0].read_bytes())["predictions"][0]["top"]) == 2

    process.send_signal(signal.SIGINT)
    rest, wrong = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, f"{finished}\n")
    assert wrong == "WARNING:  Invalid HTTP request received.\n"


def test_a_port_that_is_taken_is_refused(finished: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InlayError, match=rf"cannot be served at port {port} \(.*\); write another --port, or 0\.$"):
            command(finished, port=port)


def test_a_host_that_is_none_of_this_machine(finished: Path) -> None:
    with pytest.raises(
        InlayError, match=r"^There is no host 'not a host'; write an address of this machine as --host\.$"
    ):
        command(finished, host="not a host", port=0, token=TOKEN)
    with pytest.raises(InlayError, match=r"cannot be served at port 0 of 192\.0\.2\.1 "):
        command(finished, host="192.0.2.1", port=0, token=TOKEN)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_others_are_not_served_without_a_token(finished: Path, host: str) -> None:
    sentence = rf"^Others can reach {re.escape(host)}, so a token is needed; write for example --token [\w-]{{32}}\.$"
    with pytest.raises(InlayError, match=sentence):
        command(finished, host=host)


@pytest.mark.parametrize("token", ["", "short", "with a blank in it", "ümlaute-sind-nicht-gut"])
def test_a_token_that_is_no_token(finished: Path, token: str) -> None:
    with pytest.raises(InlayError, match=r"must have at least 16 letters"):
        command(finished, token=token)


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InlayError, match="is not an inlay run folder"):
        command(tmp_path, port=0)


def test_a_missing_package_is_named(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("app", "model", "uploads"):
        monkeypatch.delitem(sys.modules, f"inlay.serving.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "python_multipart", None)
    sentence = r"needs the package python_multipart; install it with `pip install 'inlay\[serve\]'`\.$"
    with pytest.raises(InlayError, match=sentence):
        command(finished)
