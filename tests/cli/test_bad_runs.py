import json
from collections.abc import Callable
from pathlib import Path

import pytest

Refused = Callable[..., str]

TENSORS = Path("stages") / "001-novel" / "tensors.safetensors"


def _edit_json(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def _newer(run: Path) -> None:
    manifest = json.loads((run / "inlay.json").read_text())
    (run / "inlay.json").write_text(json.dumps({**manifest, "format": manifest["format"] + 1}))


def _newer_and_of_another_structure(run: Path) -> None:
    (run / "inlay.json").write_text(json.dumps({"format": 7}))


def _without_tensors(run: Path) -> None:
    (run / TENSORS).unlink()


def _without_facts_of_the_base(run: Path) -> None:
    (run / "stages" / "000-base" / "stage.json").unlink()


def _facts_edited(run: Path) -> None:
    _edit_json(run / "stages" / "001-novel" / "stage.json", '"seed": 0', '"seed": 1')


def _manifest_edited(run: Path) -> None:
    _edit_json(run / "inlay.json", '"000-base"', '"000-novel"')


def _manifest_with_a_stage_dropped(run: Path) -> None:
    manifest = json.loads((run / "inlay.json").read_text())
    manifest["stages"].pop()
    (run / "inlay.json").write_text(json.dumps(manifest))


def _manifest_cut_off(run: Path) -> None:
    text = (run / "inlay.json").read_text()
    (run / "inlay.json").write_text(text[: len(text) // 2])


def _tensors_edited(run: Path) -> None:
    content = bytearray((run / TENSORS).read_bytes())
    content[-1] ^= 1
    (run / TENSORS).write_bytes(content)


def _tensors_cut_off(run: Path) -> None:
    (run / TENSORS).write_bytes((run / TENSORS).read_bytes()[:-100])


@pytest.mark.parametrize("command", ["info", "predict", "discover", "evaluate"])
@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (_newer, "was written by a newer inlay"),
        (_newer_and_of_another_structure, "was written by a newer inlay, in format 7"),
        (_without_tensors, f"is incomplete, as {TENSORS} is missing"),
        (_without_facts_of_the_base, "is incomplete, as stages/000-base/stage.json is missing"),
        (_facts_edited, "stage.json was changed after it was written"),
        (_manifest_edited, "inlay.json was changed after it was written"),
        (_manifest_with_a_stage_dropped, "inlay.json was changed after it was written"),
        (_manifest_cut_off, "inlay.json is damaged"),
        (_tensors_edited, "tensors.safetensors was changed after it was written"),
        (_tensors_cut_off, "tensors.safetensors was changed after it was written"),
    ],
)
def test_damaged_run(
    refused: Refused,
    discovered: Path,
    pictures: Path,
    command: str,
    damage: Callable[[Path], None],
    complaint: str,
) -> None:
    damage(discovered)
    options = {"info": (), "discover": (pictures / "flat", "--classes", 2)}.get(command, (pictures / "test",))
    assert complaint in refused(discovered, command, discovered, *options)


def test_folder_that_is_no_run(refused: Refused, pictures: Path) -> None:
    sentence = refused(pictures, "info", pictures / "base")
    assert f"{pictures / 'base'} is not an inlay run folder; make one with" in sentence


def test_file_that_is_no_run(refused: Refused, pictures: Path) -> None:
    file = next((pictures / "flat").iterdir())
    assert f"{file} is a file, not an inlay run folder" in refused(pictures, "info", file)


def test_run_that_does_not_exist(refused: Refused, tmp_path: Path) -> None:
    assert "is not an inlay run folder" in refused(tmp_path, "info", tmp_path / "missing")


def test_fit_does_not_replace_a_run(refused: Refused, discovered: Path, pictures: Path, quick: tuple[str, ...]) -> None:
    options = ("--out", discovered, "--backbone", "resnet8", "--seed", 99, *quick)
    for more in ((), ("--restart",)):
        sentence = refused(discovered, "fit", pictures / "base", *options, *more)
        assert f"{discovered} already holds a run; choose another --out" in sentence


def test_fit_does_not_write_into_a_folder_of_other_things(
    refused: Refused, pictures: Path, quick: tuple[str, ...]
) -> None:
    sentence = refused(pictures, "fit", pictures / "base", "--out", pictures, "--backbone", "resnet8", *quick)
    assert sentence == f"{pictures} is not empty and holds no inlay run; choose another --out."


def test_fit_does_not_replace_a_file(refused: Refused, pictures: Path, quick: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("mine")
    sentence = refused(file, "fit", pictures / "base", "--out", file, "--backbone", "resnet8", *quick)
    assert sentence == f"{file} is a file; choose another --out."
