import shutil
from pathlib import Path

import pytest
from PIL import Image

from inlay.review.results import Metrics, Results
from tiny_digits import QUICK, digits
from tiny_runs import quick_learner

SETTINGS = QUICK | {"base.training.epochs": 6, "base.contrastive": 0.0, "training.epochs": 4}


def metrics_of(old: float, new: float | None, groups: dict[str, float | None]) -> Metrics:
    return {
        "old": old,
        "new": new,
        "all": 0.8127,
        "groups": groups,
        "new_head": None if new is None else 0.7654,
        "old_head": 0.9753,
        "nmi": None if new is None else 0.654,
        "ari": None if new is None else -0.012,
        "matched_on": None if new is None else "train",
    }


@pytest.fixture
def results() -> Results:
    return {
        "command": "inlay demo --seed 3",
        "seed": 3,
        "versions": {"inlay": "0.1.0", "torch": "2.11.0"},
        "seconds": 75.0,
        "stages": [
            {
                "name": "base",
                "kind": "base",
                "classes": ["zero", "one", "two"],
                "metrics": metrics_of(0.9876, None, {"base": 0.9876}),
                "merge": None,
                "baselines": None,
                "seconds": 12.34,
            },
            {
                "name": "stage1",
                "kind": "novel",
                "classes": ["found-a", "found-b"],
                "metrics": metrics_of(0.9432, 0.6789, {"base": 0.9432, "stage1": 0.6789}),
                "merge": {
                    "max_abs_diff": 2.5e-6,
                    "parameters_before": 1234567,
                    "parameters_hybrid": 2345678,
                    "parameters_after": 1235081,
                },
                "baselines": {
                    "kmeans_pixels": {"new_head": 0.4321},
                    "kmeans_features": {"new_head": 0.5432, "base": "own"},
                    "forgetful": {"old": 0.0123, "new": 0.7012, "all": 0.3456},
                    "supervised": {"old": 0.9912, "new": 0.9823, "all": 0.9876},
                },
                "seconds": 62.66,
            },
        ],
    }


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
