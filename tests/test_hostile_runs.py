"""Run folders that somebody has edited with care: every checksum is right, and the content is not."""

import copy
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import inlay
from inlay import decisions
from inlay.calibration import Calibration, HiddenTrial
from inlay.decided import keep_decisions
from inlay.decisions import Decision, Merge, Rename
from inlay.engine import checkpoint
from inlay.errors import InlayError
from inlay.knowledge import Knowledge
from inlay.run_folder import RunFolder
from inlay.sealed import write_sealed
from tiny_digits import digits
from tiny_runs import FIRST, SECOND, SEEN, contents, fresh, reopened, two_stages

COUNT = 300
FILES = [
    "inlay.json",
    "stages/000-base/stage.json",
    "stages/002-novel/stage.json",
    "matching.json",
    "decisions.json",
    "calibration.json",
]
VALUES: list[Any] = [
    *(None, True, -1, 0, 3.5, 1e308, 2**70, 10**9),
    *("", "../../outside", "/etc/passwd", "a\x00\nb", "NaN", "resnet18"),
    *([], {}, [[]], {"a": 1}),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything that a run can hold; only to be copied."""
    path = tmp_path_factory.mktemp("whole") / "run"
    learner, _ = reopened(two_stages(), path)
    learner.evaluate(fresh(SEEN), digits([*FIRST, *SECOND]))
    run = RunFolder.open(path)
    trial = HiddenTrial(("a",), 2, 0.9, 0.1, 0.8, 0.1, 0.1)
    run.write_extra("calibration", Calibration(0.9, (0.1, 0.2), 1.5, (trial,)).to_json())
    knowledge = Knowledge.from_files(*run.read(), torch.device("cpu"))
    taken: list[Decision] = [Rename(5, "cat"), Merge((6,), 5)]
    keep_decisions(run, knowledge, taken, decisions.replay(knowledge, taken))
    return path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "000-base").mkdir()
    (tmp_path / "outside" / "000-base" / "private").write_text("private")
    return Path(shutil.copytree(whole, tmp_path / "run"))


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], (*at, key))
    elif isinstance(value, list):
        for index in range(min(len(value), 4)):
            yield from _places(value[index], (*at, index))


def _edited(value: Any, chance: random.Random) -> Any:
    """Change one place of a JSON value, preferably one that holds much."""
    places = list(_places(value))
    place = min(chance.choices(places, k=3), key=len)
    if not place:
        return chance.choice(VALUES)
    holder = value
    for key in place[:-1]:
        holder = holder[key]
    way = chance.randrange(5)
    if way == 0:
        del holder[place[-1]]
    elif way == 1 and isinstance(holder, dict):
        holder["../outside"] = holder.pop(place[-1])
    elif way == 2 and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[place[-1]]))
    else:
        holder[place[-1]] = chance.choice(VALUES)
    return value


def _bent(text: bytes, chance: random.Random) -> bytes:
    """Change some bytes of a file."""
    place = chance.randrange(len(text))
    piece = chance.choice([b"", b"\x00", b"\xff\xfe", b"NaN", b"1e999", b"[" * 5000, b'"', b"9" * 5000])
    return text[:place] + piece + text[place + chance.randint(0, 9) :]


def _write_manifest(run: Path, manifest: Any) -> None:
    if isinstance(manifest, dict):
        manifest.pop("checksum", None)
        write_sealed(run / "inlay.json", manifest)
    else:
        (run / "inlay.json").write_text(json.dumps(manifest))


def _make_checksums_right(run: Path) -> None:
    manifest = json.loads((run / "inlay.json").read_text())
    for files in (*(stage["files"] for stage in manifest["stages"]), manifest["extras"]):
        for name in files:
            files[name] = hashlib.sha256((run / name).read_bytes()).hexdigest()
    _write_manifest(run, manifest)


def _refusal(run: Path) -> str | None:
    """The sentence that a run is refused with, if it is."""
    try:
        learner = inlay.load(run, device="cpu")
        learner.matched_names(1)
    except InlayError as error:
        sentence = str(error)
        assert sentence.endswith(".") and "\n" not in sentence and len(sentence) < 1000
        return sentence
    return None


def test_edited_runs_are_opened_or_refused_in_words(run: Path, whole: Path) -> None:
    chance, refused = random.Random(0), 0
    outside = contents(run.parent / "outside")
    for number in range(COUNT):
        file = run / FILES[number % len(FILES)]
        if number % 5 == 0:
            file.write_bytes(_bent(file.read_bytes(), chance))
        elif file.name == "inlay.json":
            _write_manifest(run, _edited(json.loads(file.read_text()), chance))
        else:
            file.write_text(json.dumps(_edited(json.loads(file.read_text()), chance)))
            _make_checksums_right(run)
        refused += _refusal(run) is not None
        for name in (file.relative_to(run), "inlay.json"):
            shutil.copy(whole / name, run / name)
    assert COUNT // 3 < refused < COUNT
    assert _refusal(run) is None and contents(run) == contents(whole)
    assert contents(run.parent / "outside") == outside
    assert sorted(entry.name for entry in run.parent.iterdir()) == ["outside", "run"]


def _stage_elsewhere(manifest: Any) -> None:
    manifest["stages"][0]["name"] = "../../outside/000-base"


def _file_elsewhere(manifest: Any) -> None:
    files = manifest["stages"][0]["files"]
    files["../outside/000-base/private"] = files.pop("stages/000-base/stage.json")


def _file_at_an_absolute_path(manifest: Any) -> None:
    manifest["stages"][0]["files"]["/etc/passwd"] = "0" * 64


def _extra_elsewhere(manifest: Any) -> None:
    manifest["extras"]["../outside.json"] = "0" * 64


def _stages_in_another_order(manifest: Any) -> None:
    manifest["stages"].reverse()


def _stages_that_are_no_list(manifest: Any) -> None:
    manifest["stages"] = {"0": manifest["stages"][0]}


def _no_checksum(manifest: Any) -> None:
    manifest["extras"]["matching.json"] = 7


@pytest.mark.parametrize(
    "edit",
    [
        _stage_elsewhere,
        _file_elsewhere,
        _file_at_an_absolute_path,
        _extra_elsewhere,
        _stages_in_another_order,
        _stages_that_are_no_list,
        _no_checksum,
    ],
)
def test_manifest_lists_nothing_but_files_of_the_run(run: Path, edit: Callable[[Any], None]) -> None:
    manifest = json.loads((run / "inlay.json").read_text())
    edit(manifest)
    _write_manifest(run, manifest)
    assert _refusal(run) == (
        f"{run / 'inlay.json'} was changed after it was written (edited by hand or damaged); restore it from a copy."
    )


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"format": ' + b"9" * 5000 + b"}", b'{"format": 1e999}', b"\xff"])
def test_manifest_that_is_no_json_of_ours(run: Path, text: bytes) -> None:
    (run / "inlay.json").write_bytes(text)
    sentence = _refusal(run)
    assert sentence is not None and sentence.startswith(f"{run / 'inlay.json'} is damaged or was not written by inlay")


@pytest.mark.parametrize("name", ["progress", "stages", "dropped"])
def test_nothing_is_written_or_removed_through_a_link(run: Path, name: str) -> None:
    outside = run.parent / "outside"
    if (run / name).is_dir():
        (run / name).rename(run / "moved")
        shutil.copytree(run / "moved", outside, dirs_exist_ok=True)
    (run / name).symlink_to(outside)
    before = contents(outside)
    folder = RunFolder(run)
    for attempt in (folder.clear_progress, lambda: folder.truncate(1, {}), lambda: folder.write_extra("notes", 1)):
        with pytest.raises(InlayError, match=rf"{name} is a link to another place, to which nothing is written"):
            attempt()
    with pytest.raises(InlayError, match="is a link to another place"):
        inlay.load(run, device="cpu").rollback(0)
    assert contents(outside) == before


def test_leftover_that_is_a_link_is_removed_alone(run: Path) -> None:
    (run / "stages" / "007-novel").symlink_to(run.parent / "outside" / "000-base")
    RunFolder(run).write_extra("notes", 1)
    assert not os.path.lexists(run / "stages" / "007-novel")
    assert (run.parent / "outside" / "000-base" / "private").read_text() == "private"


def test_lock_that_is_a_link_or_a_pipe(run: Path) -> None:
    lock = run / ".lock"
    lock.unlink(missing_ok=True)
    lock.symlink_to(run.parent / "outside" / "lock")
    with pytest.raises(InlayError, match="cannot be written"):
        RunFolder.open(run).clear_progress()
    assert not (run.parent / "outside" / "lock").exists()
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(InlayError, match="cannot be written"):
        RunFolder.open(run).clear_progress()


def test_checkpoint_of_another_shape_is_refused_in_words(run: Path) -> None:
    learner = inlay.load(run, device="cpu")
    path = RunFolder.open(run).progress_path("training.safetensors")
    pile = digits(["7", "8"]).without_labels()
    for facts, sentence in (
        ({"fingerprint": 3}, "holds unfinished work with other images or settings, .*--restart"),
        ({"seconds": None}, "A checkpoint of the run was damaged or edited by hand"),
    ):
        checkpoint.write_tensors(path, {"module.network.a": torch.zeros(2)}, facts)
        with pytest.raises(InlayError, match=sentence):
            learner.discover(pile, classes=2)
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(InlayError, match=r"training\.safetensors is damaged"):
        learner.discover(pile, classes=2)
