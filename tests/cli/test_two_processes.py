"""The commands under torchrun: two processes do and say what one does."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

from inlay import load

Inlay = Callable[..., CompletedProcess[str]]

LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
# Steps so small that the rounding of sums in another order stays small.
SLOW = ("--set=base.training.learning_rate=0.01", "--set=training.learning_rate=0.01")


def _in_two_processes(*arguments: object) -> CompletedProcess[str]:
    command = [sys.executable, *LAUNCHER, "-m", "inlay", *map(str, arguments), "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def _learn_and_predict(
    inlay: Inlay, pictures: Path, options: tuple[str, ...], run: Path
) -> tuple[list[str], dict[str, str]]:
    """Fit, discover and predict; return the lines that were said, without times and paths, and the predictions."""
    fitted = inlay("fit", pictures / "base", "--out", run, "--backbone", "resnet8", *options)
    assert fitted.returncode == 0, fitted.stderr
    discovered = inlay("discover", run, pictures / "flat", "--classes", 3)
    assert discovered.returncode == 0, discovered.stderr
    predicted = inlay("predict", run, pictures / "test")
    assert predicted.returncode == 0, predicted.stderr
    said = [re.sub(r"in \d+ s|at most \S+;", "", line) for line in (fitted.stdout + discovered.stdout).splitlines()]
    rows = [line.split("\t") for line in predicted.stdout.splitlines()]
    predictions = {row[0]: row[1] for row in rows}
    assert len(predictions) == len(rows)
    return [line.replace(str(run), "RUN") for line in said if line != str(run)], predictions


def test_two_processes_say_and_predict_what_one_does(
    inlay: Inlay, pictures: Path, quick: tuple[str, ...], tmp_path: Path
) -> None:
    options = (*quick, *SLOW, "--exemplars", "2")
    one_said, one = _learn_and_predict(inlay, pictures, options, tmp_path / "one.inlay")
    two_said, two = _learn_and_predict(_in_two_processes, pictures, options, tmp_path / "two.inlay")
    assert two_said == one_said
    kept = [load(tmp_path / name, device="cpu").kept_beside for name in ("one.inlay", "two.inlay")]
    assert [None if images is None else len(images[1]) for images in kept] == [2 * 4, 2 * 4]
    assert two.keys() == one.keys()
    assert len(set(one.values())) > 2
    assert sum(two[image] == one[image] for image in one) >= 0.95 * len(one)


def test_a_wrong_setting_is_told_once(pictures: Path, tmp_path: Path) -> None:
    said = _in_two_processes("fit", pictures / "base", "--out", tmp_path / "run.inlay", "--set", "epochs=3")
    assert said.returncode != 0
    assert said.stdout == ""
    assert said.stderr.count("Error: There is no setting 'epochs'") == 1
    assert not (tmp_path / "run.inlay").exists()
