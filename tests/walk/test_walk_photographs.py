"""The guide on photographs, command by command, with nothing but its defaults."""

import csv
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import inlay
from image_traces import PIECE, layouts, pieces_of, traces
from inlay.data import load
from inlay.evaluation.kmeans import kmeans_baseline
from walk.guide import COMMANDS, GUIDE, LEARN, Walk, commands_of
from walk.photographs import LABELLED, NOVEMBER, OCTOBER, Photographs, write_photographs

DOCTOR, FIT, FIRST, REVIEW, SECOND, PREDICT, EXPORT, ROLLBACK = COMMANDS


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Photographs:
    return write_photographs(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def broken(photographs: Photographs) -> str:
    """What doctor says before the broken file is deleted."""
    said = Walk(photographs.folder).take(DOCTOR)
    assert said.returncode == 1
    photographs.broken.unlink()
    return said.stdout


@pytest.fixture(scope="module")
def walk(photographs: Photographs, broken: str) -> Walk:
    walk = Walk(photographs.folder)
    for command in (*COMMANDS, LEARN):
        said = walk.take(command)
        assert said.returncode == 0, said.stderr
    return walk


@pytest.fixture(scope="module")
def named(walk: Walk, photographs: Photographs) -> dict[str, Counter[str]]:
    """How often each name was given to images of each kind after both stages."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in (*LABELLED, *OCTOBER, *NOVEMBER)}
    with (walk.folder / "out.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            counts[photographs.kinds[row["source"]]][row["name"]] += 1
    return counts


def test_the_guide_shows_these_commands() -> None:
    assert tuple(commands_of(GUIDE.read_text(encoding="utf-8"))) == (*COMMANDS, LEARN)


def test_doctor_finds_the_broken_file_and_what_is_there(broken: str, walk: Walk, photographs: Photographs) -> None:
    assert f"1 file cannot be read, such as 'photos/{photographs.broken.relative_to(walk.folder / 'photos')}'" in broken
    told = walk.said[DOCTOR].stdout
    for words in ("several sets", "JPEG", "PNG", "grey", *(f"{kind} 50" for kind in LABELLED)):
        assert words in told
    turned = re.search(r"turned by EXIF +(\d+)", told)
    assert turned is not None and int(turned[1]) > 50
    assert told.splitlines()[-1] == "inlay fit photos/labelled --out run.inlay"


def test_fit_reads_images_at_the_size_that_doctor_tells(walk: Walk) -> None:
    told = re.search(r"size to read at +(\d+)×(\d+)", walk.said[DOCTOR].stdout)
    assert told is not None
    assert inlay.load(walk.folder / "shop.inlay").knowledge.form.size == (int(told[2]), int(told[1]))


def test_fit_chooses_the_pretrained_network_and_says_so(walk: Walk) -> None:
    assert walk.said[FIT].stdout.startswith("Network: efficientnet-lite2-imagenet, as pretrained")
    assert [entry["name"] for entry in walk.registries[FIT]["classes"]] == list(LABELLED)


@pytest.mark.parametrize(("command", "kinds"), [(FIRST, OCTOBER), (SECOND, NOVEMBER)])
def test_known_photographs_are_sorted_out_and_new_kinds_counted(
    walk: Walk, photographs: Photographs, command: str, kinds: tuple[str, ...]
) -> None:
    counted = re.search(r"About (\d+) new \w+, between (\d+) and (\d+)", walk.said[command].stdout)
    assert counted is not None
    assert int(counted[2]) <= len(kinds) <= int(counted[3])
    assert int(counted[1]) == len(kinds)
    sorted_out = re.search(r"Of (\d+) images (\d+) are of known classes, (\d+) are new", walk.said[command].stdout)
    assert sorted_out is not None
    month = photographs.of(command.split()[-1])
    assert int(sorted_out[1]) == len(month)
    truly_new = sum(kind in kinds for kind in month.values())
    assert int(sorted_out[3]) == pytest.approx(truly_new, rel=0.2)


def test_the_review_page_starts_answers_and_stops(walk: Walk) -> None:
    said = walk.said[REVIEW].stdout
    assert "<html" in said
    assert f"The page is closed; {len(LABELLED) + len(OCTOBER)} classes are kept." in said


def test_reports_lie_beside_the_run(walk: Walk) -> None:
    for stage in (1, 2):
        assert (walk.folder / f"shop.inlay.stage-{stage}.html").stat().st_size > 10_000


def test_no_photograph_is_in_the_run_folder(walk: Walk) -> None:
    """Not after a self-test, with images kept out, stages that were dropped, and classes learned by name."""
    run = walk.folder / "shop.inlay"
    photos = sorted(file for file in (walk.folder / "photos").rglob("*") if file.is_file())[::12]
    seen = load(photos, size=inlay.load(run).knowledge.form.size[0]).images[::4].permute(0, 2, 3, 1).numpy()
    shown = [np.asarray(Image.open(file).convert("RGB")) for file in photos]
    images = [layout for pixels in (*seen, *shown) for layout in layouts(pixels)]
    pieces = pieces_of([*images, *(file.read_bytes() for file in photos)])
    stored = [file for file in run.rglob("*") if file.is_file()]
    assert len(photos) > 20 and sum(file.stat().st_size for file in stored) > 1_000_000
    assert {file: found[:3] for file in stored if (found := traces(file.read_bytes(), pieces, PIECE))} == {}
    assert traces(b"weights" + images[0][40 : 40 + 2 * PIECE] + b"weights", pieces, PIECE)


@pytest.mark.parametrize("kind", LABELLED)
def test_old_kinds_are_not_forgotten(named: dict[str, Counter[str]], kind: str) -> None:
    assert named[kind][kind] >= 0.8 * named[kind].total()


def test_each_new_kind_has_a_class_of_its_own(named: dict[str, Counter[str]]) -> None:
    best = {kind: named[kind].most_common(1)[0] for kind in (*OCTOBER, *NOVEMBER)}
    assert {name for name, _ in best.values()} == {"new-1.1", "new-1.2", "new-1.3", "new-2.1", "new-2.2"}
    assert all(best[kind][0].startswith("new-1.") for kind in OCTOBER)
    assert all(count >= 0.8 * named[kind].total() for kind, (_, count) in best.items())


def test_new_kinds_are_found_better_than_by_clustering_pixels(
    named: dict[str, Counter[str]], photographs: Photographs
) -> None:
    month = {path: kind for path, kind in photographs.of("photos/2026-10").items() if kind in OCTOBER}
    images = load([photographs.folder / path for path in month], size=64)
    truth = torch.tensor([OCTOBER.index(kind) for kind in month.values()])
    pixels = images.images.flatten(1).float() / 255
    right = sum(named[kind].most_common(1)[0][1] for kind in OCTOBER) / sum(named[kind].total() for kind in OCTOBER)
    assert right > kmeans_baseline(pixels, pixels, truth, truth, len(OCTOBER), seed=0)


def test_the_exported_network_answers_like_predict(walk: Walk, photographs: Photographs) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(walk.folder / "shop.onnx", providers=["CPUExecutionProvider"])
    with (walk.folder / "out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[::7]
    (taken,) = session.get_inputs()
    images = load([photographs.folder / row["source"] for row in rows], size=taken.shape[-1]).images.numpy()
    answers = session.run(None, {taken.name: images})[0]
    assert np.argmax(answers, axis=1).tolist() == [int(row["id"]) for row in rows]


def test_rollback_brings_the_classes_of_stage_1_back(walk: Walk) -> None:
    assert len(walk.registries[SECOND]["classes"]) == len(LABELLED) + len(OCTOBER) + len(NOVEMBER)
    assert walk.registries[ROLLBACK] == walk.registries[REVIEW] == walk.registries[FIRST]
    assert "Dropped stage 2: 2 classes (new-2.1, new-2.2)." in walk.said[ROLLBACK].stdout


def test_kinds_that_were_sorted_by_hand_are_learned_under_their_names(walk: Walk, photographs: Photographs) -> None:
    learner = inlay.load(walk.folder / "shop.inlay")
    assert [record.kind for record in learner.stages] == ["base", "novel", "labelled"]
    assert learner.classes.names[-2:] == NOVEMBER
    files = photographs.of("new")
    found = [prediction.name for prediction in learner.predict([photographs.folder / path for path in files])]
    for kinds in (LABELLED, NOVEMBER):
        own = [name == kind for name, kind in zip(found, files.values(), strict=True) if kind in kinds]
        assert sum(own) >= 0.8 * len(own)


def test_the_photographs_are_the_same_each_time(photographs: Photographs, walk: Walk, tmp_path: Path) -> None:
    again = write_photographs(tmp_path)
    assert again.kinds == photographs.kinds
    chosen = sorted(again.kinds)[::40]
    assert [(tmp_path / path).read_bytes() for path in chosen] == [
        (photographs.folder / path).read_bytes() for path in chosen
    ]
