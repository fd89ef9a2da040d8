"""A learner from its first image to its last stage, in memory and on the disk."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import inlay
from inlay import branches
from inlay.data import ImageSet
from inlay.errors import InlayError
from tiny_digits import QUICK, News, digits
from tiny_runs import (
    BASE,
    FIRST,
    SECOND,
    SEEN,
    base_learner,
    contents,
    fresh,
    quick_learner,
    reopened,
    same_weights,
    two_stages,
)


def test_ids_never_move() -> None:
    learner = quick_learner()
    learner.fit(digits(BASE))
    base = list(learner.classes)
    learner.discover(digits(FIRST), classes=2)
    first = list(learner.classes)
    learner.discover(digits(SECOND), classes=2)
    second = list(learner.classes)
    assert first[: len(base)] == base and second[: len(first)] == first
    assert [entry.id for entry in second] == list(range(7))
    assert [entry.name for entry in second] == [*BASE, "new-1.1", "new-1.2", "new-2.1", "new-2.2"]
    assert [entry.kind for entry in second] == ["labelled"] * 3 + ["discovered"] * 4


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    learner = quick_learner(seed=np.int64(7))
    learner.fit(digits(BASE))
    counts: list[Any] = [np.int64(2), np.uint8(2)]
    learner.discover(digits(FIRST), classes=counts[0])
    learner.discover(digits(SECOND), classes=counts[1])
    assert same_weights(inlay.load(learner.save(tmp_path / "run"), device="cpu"), two_stages())


def test_predictions_are_those_of_the_joint_head() -> None:
    images = fresh(SEEN)
    logits = two_stages().knowledge.logits(images)
    predictions = two_stages().predict(images)
    assert len(predictions) == len(images) == 140
    for prediction, row, name in zip(predictions, logits.double(), images.names, strict=True):
        probabilities = (row - row.max()).exp()
        assert prediction.source == name and prediction.id == int(row.argmax())
        assert prediction.probability == pytest.approx((1 / probabilities.sum()).item(), rel=1e-4)
        assert prediction.name == two_stages().classes.names[prediction.id]
        assert prediction.discovered is (prediction.id >= 3)
    assert {prediction.discovered for prediction in predictions} == {True, False}


def test_one_array_is_enough_to_predict() -> None:
    (prediction,) = two_stages().predict(np.zeros((1, 8, 8), dtype=np.uint8))
    assert prediction.source == "array#0"


NEW_PROCESS = """
import sys
import numpy
import torch
import inlay
torch.set_num_threads(1)
learner = inlay.load(sys.argv[1], device="cpu")
images = inlay.data.load(numpy.load(sys.argv[2]))
numpy.save(sys.argv[3], learner.knowledge.logits(images).numpy())
print(",".join(learner.classes.names))
"""


def test_a_moved_run_gives_the_same_logits_in_a_new_process(tmp_path: Path) -> None:
    moved, elsewhere = tmp_path / "some" / "where" / "else", tmp_path / "working"
    moved.parent.mkdir(parents=True)
    elsewhere.mkdir()
    shutil.move(two_stages().save(tmp_path / "run"), moved)
    images = fresh(SEEN)
    np.save(tmp_path / "images.npy", images.images.numpy())
    arguments = [str(moved), str(tmp_path / "images.npy"), str(tmp_path / "logits.npy")]
    command = [sys.executable, "-c", NEW_PROCESS, *arguments]
    result = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ",".join(two_stages().classes.names)
    logits = two_stages().knowledge.logits(images)
    assert np.array_equal(np.load(tmp_path / "logits.npy"), logits.numpy())


def test_loading_brings_everything_back(tmp_path: Path) -> None:
    learner, _ = reopened(two_stages(), tmp_path / "run")
    assert learner.classes == two_stages().classes and learner.stages == two_stages().stages
    assert learner.settings == two_stages().settings and learner.seed == 7
    assert same_weights(learner, two_stages())


def test_it_does_not_matter_whether_a_run_is_kept_in_memory_or_on_the_disk(tmp_path: Path) -> None:
    learner = quick_learner(run=tmp_path / "run")
    learner.fit(digits(BASE))
    learner.discover(digits(FIRST), classes=2)
    again = inlay.load(tmp_path / "run", device="cpu")
    again.discover(digits(SECOND), classes=2)
    assert same_weights(again, two_stages())
    assert learner.save(tmp_path / "run") == tmp_path / "run"
    copied = again.save(tmp_path / "copy")
    assert same_weights(inlay.load(copied, device="cpu"), two_stages())


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    same, other = (quick_learner(seed=seed) for seed in (7, 8))
    for learner in (same, other):
        learner.fit(digits(BASE))
    kept, _ = reopened(base_learner(), tmp_path / "run")
    assert same_weights(same, kept) and not same_weights(other, kept)


def test_nothing_is_drawn_from_the_global_generator(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    quick_learner().fit(digits(BASE))
    learner, _ = reopened(base_learner(), tmp_path / "run")
    learner.discover(digits(FIRST), classes=2)
    assert torch.equal(torch.get_rng_state(), state)


def test_labels_are_ignored_and_a_note_says_so(tmp_path: Path) -> None:
    first_stage = two_stages().progress
    assert isinstance(first_stage, News)
    assert first_stage.notes == ["The labels of these images are ignored: discovery works without labels."]
    unlabelled, news = reopened(base_learner(), tmp_path / "run")
    unlabelled.discover(digits(FIRST).without_labels(), classes=2)
    wrong = digits(FIRST)
    assert wrong.labels is not None
    mislabelled, _ = reopened(base_learner(), tmp_path / "other")
    mislabelled.discover(ImageSet(wrong.images, wrong.names, 1 - wrong.labels, wrong.class_names), classes=2)
    assert same_weights(unlabelled, mislabelled) and not news.notes


def test_an_earlier_stage_can_be_opened_but_not_continued(tmp_path: Path) -> None:
    learner, _ = reopened(two_stages(), tmp_path / "run", stage=1)
    assert [entry.id for entry in learner.classes] == [0, 1, 2, 3, 4] and len(learner.stages) == 2
    assert learner.evaluate(fresh([*BASE, *FIRST])).counts == {"old": 60, "new": 40, "all": 100}
    with pytest.raises(InlayError, match="has later stages; load it anew, without a stage number"):
        learner.discover(digits(SECOND), classes=3)


def test_the_paper_preset_runs() -> None:
    learner = quick_learner(preset="paper")
    learner.fit(digits(BASE))
    record = learner.discover(digits(FIRST), classes=2)
    assert learner.settings.method == "adm" and learner.knowledge.statistics.kind == "shared"
    assert record is not None and record.merge is not None
    assert record.merge["max_abs_diff"] < 1e-4
    assert len(learner.predict(fresh(FIRST))) == 40


def test_images_are_brought_to_the_size_of_the_learner() -> None:
    learner = quick_learner(size=10)
    learner.fit(digits(["0", "1"]))
    assert learner.knowledge.form.size == (10, 10)
    colour = np.zeros((2, 20, 16, 3), dtype=np.uint8)
    assert len(learner.predict(colour)) == 2


def test_aff_is_saved_and_loaded_but_takes_no_further_stage(tmp_path: Path) -> None:
    learner = quick_learner(settings={**QUICK, "branch.gate": "aff"})
    learner.fit(digits(BASE))
    stage = learner.discover(digits(FIRST), classes=2)
    assert stage is not None and stage.merge is None
    again = inlay.load(learner.save(tmp_path / "run"), device="cpu")
    test = fresh([*BASE, *FIRST])
    assert branches.is_hybrid(again.knowledge.network)
    assert torch.equal(again.knowledge.logits(test), learner.knowledge.logits(test))
    assert again.evaluate(test, match=digits(FIRST)) == learner.evaluate(test, match=digits(FIRST))
    before = contents(tmp_path / "run")
    with pytest.raises(InlayError, match=r"no stage can follow one with branch\.gate=aff"):
        again.discover(digits(SECOND), classes=2)
    assert len(again.stages) == 2 and contents(tmp_path / "run") == before


def own_backbone() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 20, 3, bias=False),
        nn.BatchNorm2d(20),
        nn.ReLU(),
        nn.Flatten(),
    )


def test_a_module_of_ones_own_as_backbone(tmp_path: Path) -> None:
    learner = quick_learner(backbone=own_backbone())
    learner.fit(digits(BASE))
    learner.discover(digits(FIRST), classes=2)
    folder = learner.save(tmp_path / "run")
    with pytest.raises(InlayError, match=r"pass it: inlay\.load\(run, backbone=module\)"):
        inlay.load(folder, device="cpu")
    again = inlay.load(folder, backbone=own_backbone(), device="cpu")
    images = fresh([*BASE, *FIRST])
    assert torch.equal(again.knowledge.logits(images), learner.knowledge.logits(images))
    stage = again.discover(digits(SECOND), classes=2)
    assert stage is not None and stage.index == 2


def test_a_module_that_gives_no_features_is_refused() -> None:
    learner = quick_learner(backbone=nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)))
    with pytest.raises(InlayError, match=r"A backbone must return features \[N, D\]"):
        learner.fit(digits(BASE))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with two classes of image files, one of them damaged."""
    images = digits(["0", "1"], 0, 12)
    assert images.labels is not None
    for number, (pixels, label) in enumerate(zip(images.images, images.labels.tolist(), strict=True)):
        folder = tmp_path / "photos" / f"class-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0].numpy()).save(folder / f"{number:02d}.png")
    (tmp_path / "photos" / "class-1" / "99.png").write_bytes(b"no image")
    return tmp_path / "photos"


def test_damaged_files_are_refused_or_left_out_with_a_note(photos: Path) -> None:
    news = News()
    learner = quick_learner(progress=news)
    with pytest.raises(InlayError, match=r"99\.png' cannot be read as an image"):
        learner.fit(photos)
    assert learner.fit(photos, skip_bad=True).images == 24
    assert len(news.notes) == 1 and news.notes[0].startswith("Left out 1 unreadable image, such as ")
    assert news.notes[0].endswith("99.png.") and learner.classes.names == ("class-0", "class-1")
    for attempt in (
        lambda bad: learner.discover(photos, 2, skip_bad=bad),
        lambda bad: learner.predict(photos, skip_bad=bad),
    ):
        with pytest.raises(InlayError, match=r"99\.png' cannot be read as an image"):
            attempt(False)
        attempt(True)
    assert sum(note.startswith("Left out 1") for note in news.notes) == 3


def test_facts_on_the_disk_name_no_place(tmp_path: Path) -> None:
    folder = two_stages().save(tmp_path / "run")
    for path in folder.rglob("*.json"):
        assert str(tmp_path) not in json.dumps(json.loads(path.read_text()))
