import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inlay.data import ImageSet, load
from inlay.knowledge import Knowledge
from inlay.medoids import MEDOIDS, note_medoids, place_of
from inlay.registry import ClassRegistry
from tiny_digits import digits
from tiny_runs import BASE, FIRST, SECOND, base_learner, quick_learner, two_stages


def _nearest_to_mean(knowledge: Knowledge, images: ImageSet, members: list[int]) -> list[int]:
    """The slow way: distances one by one, in double precision."""
    features = knowledge.features(images).double().tolist()
    size = len(features[0])
    mean = [sum(features[member][axis] for member in members) / len(members) for axis in range(size)]
    away = {member: sum((features[member][axis] - mean[axis]) ** 2 for axis in range(size)) for member in members}
    return sorted(members, key=lambda member: away[member])[:MEDOIDS]


def test_labelled_classes_have_the_images_nearest_to_their_mean() -> None:
    learner, images = base_learner(), digits(BASE)
    assert images.labels is not None
    for entry in learner.classes:
        members = (images.labels == entry.id).nonzero().flatten().tolist()
        expected = _nearest_to_mean(learner.knowledge, images, members)
        assert {medoid.pixels for medoid in entry.medoids} == {images.fingerprints()[index] for index in expected}


def test_discovered_classes_have_the_images_nearest_to_their_mean() -> None:
    learner, images = two_stages(), digits(SECOND)
    for cluster, entry in enumerate(learner.classes.of_stage(2)):
        members = [place for place, found in enumerate(learner.stages[2].clusters) if found == cluster]
        expected = _nearest_to_mean(learner.knowledge, images, members)
        assert {medoid.pixels for medoid in entry.medoids} == {images.fingerprints()[index] for index in expected}


def test_later_stages_leave_the_medoids_of_earlier_ones_alone() -> None:
    first = {entry.id: entry.medoids for entry in base_learner().classes}
    assert {entry.id: entry.medoids for entry in two_stages().classes if entry.id in first} == first


def test_images_in_memory_are_told_by_their_number() -> None:
    learner, images = two_stages(), digits(FIRST)
    assert [record.source for record in learner.stages] == ["", "", ""]
    where = dict(zip(images.names, images.fingerprints(), strict=True))
    medoids = [medoid for entry in learner.classes.of_stage(1) for medoid in entry.medoids]
    assert medoids
    for medoid in medoids:
        assert medoid.path.startswith("array#")
        assert where[medoid.path] == medoid.pixels


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Images of the base classes as files."""
    images = digits(BASE, 0, 12)
    assert images.labels is not None
    for number, (image, label) in enumerate(zip(images.images, images.labels.tolist(), strict=True)):
        file = tmp_path / "photos" / BASE[label] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(file)
    return tmp_path / "photos"


def _noted(images: ImageSet, source: object) -> ClassRegistry:
    """The base classes with the medoids that other images give them."""
    knowledge = base_learner().knowledge
    registry = ClassRegistry.from_json(knowledge.registry.to_json())
    assert images.labels is not None
    note_medoids(registry, 0, images, knowledge.features(images), images.labels, place_of(source))
    return registry


def test_paths_of_files_are_relative_to_their_folder(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files.parent)
    registry = _noted(load("photos", size=8, channels=1), "photos")
    for entry in registry:
        assert len(entry.medoids) == MEDOIDS
        for medoid in entry.medoids:
            assert not os.path.isabs(medoid.path) and medoid.path.startswith(f"{entry.name}/")
            (print_,) = load(files / medoid.path, size=8, channels=1).fingerprints()
            assert print_ == medoid.pixels


def test_a_stage_remembers_where_its_images_were(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files.parent)
    learner = quick_learner(size=8)
    learner.fit("photos")
    learner.discover("photos", classes=2)
    assert [record.source for record in learner.stages] == [str(files)] * 2
    assert all((files / medoid.path).is_file() for entry in learner.classes for medoid in entry.medoids)


def test_images_of_an_archive_keep_their_number(tmp_path: Path) -> None:
    images = digits(BASE, 0, 12)
    assert images.labels is not None
    np.savez(tmp_path / "some.npz", images=images.images[:, 0].numpy(), labels=images.labels.numpy())
    registry = _noted(load(tmp_path / "some.npz", size=8, channels=1), tmp_path / "some.npz")
    prints = images.fingerprints()
    for medoid in (medoid for entry in registry for medoid in entry.medoids):
        name, _, number = medoid.path.partition("#")
        assert (name, prints[int(number)]) == ("some.npz", medoid.pixels)


def test_files_that_were_read_one_by_one_keep_their_whole_path(files: Path) -> None:
    images = load(files, size=8, channels=1)
    paths = [medoid.path for entry in _noted(images, images) for medoid in entry.medoids]
    assert all(Path(path).is_absolute() and Path(path).is_file() for path in paths)


def test_only_paths_are_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    assert place_of("photos") == place_of(Path("photos")) == str(tmp_path / "photos")
    for other in ("demo", "shards-{0..2}.tar", ["photos"], digits(BASE), np.zeros((2, 8, 8), dtype=np.uint8)):
        assert place_of(other) == ""


def test_a_class_without_images_has_no_medoids() -> None:
    images = digits(["0", "1"], 0, 5)
    assert [len(entry.medoids) for entry in _noted(images, images)] == [5, 5, 0]
