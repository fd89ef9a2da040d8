import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from starlette.testclient import TestClient

from inlay.serving.app import create_app
from inlay.serving.limits import Limits
from inlay.serving.model import ServedModel
from tiny_digits import QUICK, digits
from tiny_runs import BASE, FIRST, quick_learner

SETTINGS = QUICK | {"base.contrastive": 0.0, "base.training.epochs": 4, "training.epochs": 1}

Ask = Callable[..., TestClient]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three labelled classes and two discovered ones; only to be read or copied."""
    run = tmp_path_factory.mktemp("finished") / "digits.inlay"
    learner = quick_learner(settings=SETTINGS, run=run)
    learner.fit(digits(BASE))
    learner.discover(digits(FIRST), classes=2)
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "digits.inlay"))


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Images of all classes that were not learned, in several formats."""
    folder = tmp_path_factory.mktemp("files")
    suffixes = (".png", ".bmp", ".tif")
    paths = [folder / f"digit {number}{suffixes[number % 3]}" for number in range(10)]
    for path, image in zip(paths, digits([*BASE, *FIRST], 60, 62).images, strict=True):
        Image.fromarray(image[0].numpy()).resize((24, 20)).save(path)
    return paths


@pytest.fixture(scope="session")
def model(finished: Path) -> ServedModel:
    return ServedModel(finished, "cpu", print)


@pytest.fixture(scope="session")
def ask(model: ServedModel) -> Ask:
    """Opens a client on this machine, by default of the model that tests share."""

    def ask(served: ServedModel = model, token: str | None = None, **limits: float) -> TestClient:
        app = create_app(served, Limits(**limits), token)  # type: ignore[arg-type]
        return TestClient(app, base_url="http://127.0.0.1:8000")

    return ask


@pytest.fixture(scope="session")
def client(ask: Ask) -> TestClient:
    return ask()
