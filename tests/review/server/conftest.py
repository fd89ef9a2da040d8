import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from inlay.engine.progress import QuietProgress
from inlay.review.server.app import create_app
from inlay.review.server.session import Session, open_session

TOKEN, PORT = "a-token-for-tests", 8765

Review = Callable[[], AbstractContextManager[Session]]


class Browser:
    """Asks the page as a browser does."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def get(self, path: str) -> Any:
        answer = self.client.get(f"/{TOKEN}/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def state(self) -> Any:
        return self.get("api/state")

    def ids(self) -> list[int]:
        return [entry["id"] for entry in self.state()["classes"]]

    def decide(self, decision: object) -> Any:
        """Send a decision that is to be followed."""
        answer = self.sent(json.dumps({"decision": decision, "revision": self.state()["revision"]}))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, decision: object) -> str:
        """Send a decision that is not, and return the sentence that says why."""
        before = self.state()
        answer = self.sent(json.dumps({"decision": decision, "revision": before["revision"]}))
        assert answer.status_code == 400
        assert self.state() == before
        return str(answer.json()["error"])

    def sent(self, body: str | bytes, kind: str = "application/json") -> Any:
        content = body.encode() if isinstance(body, str) else body
        return self.client.post(f"/{TOKEN}/api/decisions", content=content, headers={"Content-Type": kind})


@pytest.fixture
def review(run: Path, pictures: Path) -> Review:
    """Opens the review of the run anew."""
    return partial(open_session, run, str(pictures / "new"), torch.device("cpu"), QuietProgress())


@pytest.fixture
def session(review: Review) -> Iterator[Session]:
    with review() as opened:
        yield opened


@pytest.fixture
def browser(session: Session, browse: Callable[[Session], Browser]) -> Browser:
    return browse(session)


@pytest.fixture(scope="session")
def browse() -> Callable[[Session], Browser]:
    """Opens a page of a session."""

    def browse(session: Session) -> Browser:
        return Browser(TestClient(create_app(session, TOKEN, PORT), base_url=f"http://127.0.0.1:{PORT}"))

    return browse


@pytest.fixture(scope="session")
def untouched(
    finished: Path, pictures: Path, browse: Callable[[Session], Browser], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    """A page on which nothing is ever decided, so that tests can share it."""
    run = Path(shutil.copytree(finished, tmp_path_factory.mktemp("untouched") / "digits.inlay"))
    with open_session(run, str(pictures / "new"), torch.device("cpu"), QuietProgress()) as session:
        yield browse(session)
        assert session.run.read_extra("decisions") is None
