import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from inlay.cli.review import review as command
from inlay.errors import InlayError

START = """
import sys
from pathlib import Path
from inlay.cli.review import review
review(Path(sys.argv[1]), browser=False, device="cpu")
"""


def test_the_command_serves_the_page_until_it_is_stopped(run: Path, pictures: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", START, run],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.fullmatch(r"Stop the page with Ctrl-C\. It is at (http://127\.0\.0\.1:(\d+)/[\w-]{32}/)\n", line)
        assert found is not None, line
        address, port = found.groups()
        with urlopen(f"{address}api/state") as answer:
            assert answer.status == 200
        with pytest.raises(HTTPError, match="403"):
            urlopen(f"http://127.0.0.1:{port}/")
        with pytest.raises(InlayError, match="Another inlay process is writing"):
            command(run, str(pictures / "new"), browser=False)
        process.send_signal(signal.SIGINT)
        said, wrong = process.communicate()
    finally:
        process.kill()
    assert said == f"The page is closed; 6 classes are kept.\n{run}\n"
    assert wrong == ""
    assert process.returncode == 0


def test_a_port_that_is_taken_is_refused(run: Path, pictures: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InlayError, match=rf"cannot be served at port {port} \(.*\); write another --port, or 0\.$"):
            command(run, str(pictures / "new"), port=port, browser=False)


def test_without_images_the_command_says_what_to_write(run: Path, pictures: Path) -> None:
    moved = (pictures / "new").rename(pictures / "moved")
    try:
        with pytest.raises(InlayError, match="write --images with the folder they are in"):
            command(run, browser=False)
    finally:
        moved.rename(pictures / "new")


def test_a_missing_package_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("app", "serving"):
        monkeypatch.delitem(sys.modules, f"inlay.review.server.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(InlayError, match=r"needs the package fastapi; install it with `pip install 'inlay\[review\]'`"):
        command(run, browser=False)
