"""From a labelled folder and a mixed pile to new classes, without a number of classes."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import inlay as library
from cli.conftest import write_digits
from tiny_digits import QUICK

Inlay = Callable[..., CompletedProcess[str]]

KNOWN, NEW = ["0", "1", "2", "4", "7"], ["3", "6"]
SETTINGS = {**QUICK, "base.training.epochs": 8, "base.training.learning_rate": 0.05, "base.contrastive": 0.0}


def test_a_mixed_pile_is_learned_without_saying_how_many_classes(inlay: Inlay, tmp_path: Path) -> None:
    write_digits(tmp_path / "labelled", KNOWN, 0, 120)
    write_digits(tmp_path / "old", KNOWN, 120, 150)
    write_digits(tmp_path / "new", NEW, 0, 60)
    pile = tmp_path / "pile"
    pile.mkdir()
    for image in [*(tmp_path / "old").rglob("*.png"), *(tmp_path / "new").rglob("*.png")]:
        shutil.copy(image, pile / f"{image.parent.name} {image.name}")
    run = tmp_path / "digits.inlay"
    changes = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    fitted = inlay("fit", tmp_path / "labelled", "--out", run, "--backbone", "resnet8", "--held-out", 0.2, *changes)
    assert fitted.returncode == 0, fitted.stderr
    assert re.search(r"Accuracy on the 120 images that were kept out of training: \d+\.\d %\.", fitted.stdout)
    assert re.search(r"Self-test: \d+ classes were counted where 2 had been hidden", fitted.stdout)
    found = inlay("discover", run, pile)
    assert found.returncode == 0, found.stderr
    counted = re.search(r"About (\d+) new classes, between (\d+) and (\d+)", found.stdout)
    assert counted is not None
    assert re.search(r"Of 270 images \d+ are of known classes, \d+ are new, and \d+ are neither\.", found.stdout)
    stage = library.load(run).stages[1]
    assert len(stage.class_names) == int(counted[1])
    refused = inlay("discover", run, tmp_path / "new", "--all-new", "--classes", 2, "--max-forgetting", -1)
    assert refused.returncode == 2
    assert "not accepted" in refused.stderr
    nothing = inlay("discover", run, tmp_path / "old", "--restart")
    assert nothing.returncode == 0, nothing.stderr
    facts = json.loads((run / "calibration.json").read_text())
    assert len(facts["known_scores"]) == 120
