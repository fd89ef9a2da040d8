"""What commands refuse to write over, and what they refuse to take."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from PIL import Image

from inlay import Learner
from inlay.decided import keep_decisions
from inlay.decisions import Decision, Merge, Reject, replay
from inlay.errors import InlayError
from inlay.run_folder import RunFolder
from tiny_digits import digits
from tiny_runs import BASE, FIRST, contents, two_stages

Inlay = Callable[..., CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    two_stages().save(tmp_path / "shop.inlay")
    return tmp_path / "shop.inlay"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "one.png"
    Image.fromarray(digits(FIRST).images[0, 0].numpy()).save(file)
    return file


def _refused(done: CompletedProcess[str], sentence: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert sentence in " ".join(done.stderr.split()) and done.stderr.count("\n") <= 2


@pytest.mark.parametrize("target", ["inlay.json", "new.csv"])
def test_predictions_stay_out_of_run_folders(inlay: Inlay, run: Path, image: Path, target: str) -> None:
    before = contents(run)
    _refused(inlay("predict", run, image, "--csv", run / target), "lies in the run folder")
    assert contents(run) == before


def test_predictions_replace_nothing_but_predictions(inlay: Inlay, run: Path, image: Path, tmp_path: Path) -> None:
    bytes_before = image.read_bytes()
    _refused(inlay("predict", run, image, "--csv", image), "holds no predictions; choose another name")
    assert image.read_bytes() == bytes_before
    out = tmp_path / "out.csv"
    assert inlay("predict", run, image, "--csv", out).returncode == 0
    first = out.read_text()
    out.write_text(first.splitlines()[0] + "\nold rows\n")
    assert inlay("predict", run, image, "--csv", out).returncode == 0
    assert out.read_text() == first


@pytest.mark.parametrize("option", ["--onnx", "--weights", "--csv", "--label-studio"])
def test_exports_stay_out_of_run_folders(inlay: Inlay, run: Path, option: str) -> None:
    before = contents(run)
    _refused(inlay("export", run, option, run / "inlay.json", "--overwrite"), "lies in the run folder")
    assert contents(run) == before


@pytest.mark.parametrize("drop", ["nan", "-5", "5", "inf"])
def test_a_limit_of_forgetting_has_to_limit(inlay: Inlay, run: Path, image: Path, drop: str) -> None:
    before = contents(run)
    for verb in ("discover", "learn"):
        _refused(inlay(verb, run, image.parent, f"--max-forgetting={drop}"), "write a number below 1, such as 0.05")
    assert contents(run) == before


def test_a_limit_of_forgetting_is_asked_of_images_that_are_known_too() -> None:
    learner = Learner("resnet8")
    with pytest.raises(InlayError, match="cannot be 'x'; write a number below 1"):
        learner.discover(digits(FIRST), max_forgetting="x")  # type: ignore[arg-type]


def test_images_larger_than_memory_are_refused_first(inlay: Inlay, tmp_path: Path, image: Path) -> None:
    for kind in "ab":
        (tmp_path / "labelled" / kind).mkdir(parents=True)
        (tmp_path / "labelled" / kind / "1.png").write_bytes(image.read_bytes())
    done = inlay("fit", tmp_path / "labelled", "--out", tmp_path / "x.inlay", "--size", "100000")
    _refused(done, "Images of 100,000 pixels are too large; write a side of at most 4,096")


def test_data_on_stdin_is_no_list_of_paths(
    inlay: Inlay, run: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for data in (image.read_bytes(), b"\xff\xd8\xff\xe0\x00\x10JFIF\x00"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(data.decode("utf-8", "surrogateescape")))
        _refused(inlay("predict", run, "-"), "write one path per line")
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    done = inlay("predict", run, "-")
    assert done.returncode == 0 and done.stdout == "" and "nothing was named" in done.stderr


def test_info_says_what_became_of_classes(inlay: Inlay, run: Path) -> None:
    known, first = Learner.load(run).knowledge, len(BASE)
    taken: list[Decision] = [Merge((first,), first + 1), Reject(first + 2)]
    keep_decisions(RunFolder.open(run), known, taken, replay(known, taken))
    lines = inlay("info", run).stdout.splitlines()
    assert lines[0].split() == ["id", "class", "stage", "kind", "images", "status"]
    told = {int(line.split()[0]): line.rstrip() for line in lines[1 : 1 + len(known.registry)]}
    assert told[first].endswith(f"merged into {first + 1}") and told[first + 2].endswith("rejected")
    assert told[0].endswith("active") and told[first + 1].endswith("active")
    register = json.loads(inlay("info", run, "--json").stdout)
    assert all(told[entry["id"]].endswith(entry["status"]) for entry in register["classes"])
    assert [event["what"] for event in register["history"]] == ["merge", "reject"]
    assert register["classes"][first]["prototype"] == f"statistics.mean[{first}]"
    assert [stage["kind"] for stage in register["stages"]] == ["base", "novel", "novel"]
