import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from inlay.engine.progress import QuietProgress
from inlay.review.server.app import create_app
from inlay.review.server.session import Session, open_session
from tiny_digits import QUICK, digits
from tiny_runs import quick_learner

TOKEN, PORT = "a-token-for-tests", 8765
SETTINGS = QUICK | {"base.training.epochs": 6, "base.contrastive": 0.0, "training.epochs": 4}

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


def _write(folder: Path, names: list[str], first: int, last: int) -> Path:
    chosen = digits(names, first, last)
    assert chosen.labels is not None
    for number, (image, label) in enumerate(zip(chosen.images, chosen.labels.tolist(), strict=True)):
        file = folder / names[label] / f"{number:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(file)
    return folder


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `base` and `new` of digits as PNG files."""
    folder = tmp_path_factory.mktemp("pictures")
    _write(folder / "base", ["0", "1", "2"], 0, 30)
    _write(folder / "new", ["3", "4", "6"], 0, 30)
    return folder


@pytest.fixture(scope="session")
def finished(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three labelled classes and three discovered ones, 3 to 5; only to be copied."""
    run = tmp_path_factory.mktemp("finished") / "digits.inlay"
    learner = quick_learner(settings=SETTINGS, run=run)
    learner.fit(pictures / "base")
    learner.discover(pictures / "new", classes=3)
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "digits.inlay"))


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
