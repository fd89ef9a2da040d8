from dataclasses import replace

import pytest

from inlay.review.content import Report, RunFacts, StageSection
from inlay.review.headline import sentences, tiles
from inlay.review.results import Baselines, Results

FACTS = RunFacts("inlay demo", 0, {}, 1.0)


@pytest.fixture
def stages(results: Results) -> tuple[StageSection, ...]:
    return tuple(StageSection(**stage) for stage in results["stages"])


def report_of(*stages: StageSection) -> Report:
    return Report("A run", "", stages, FACTS)


def test_words_and_numbers_after_a_discovery(stages: tuple[StageSection, ...]) -> None:
    assert sentences(report_of(*stages)) == [
        "The network learned 3 classes from labelled images, then found 2 classes in unlabelled images, in 1 stage.",
        "It now names 81.3% of all test images correctly: 94.3% on the old classes and 67.9% on the new ones.",
        "Sorting only the newest images among only the newest classes, it gets 76.5% right; "
        "k-means on base features gets 54.3%.",
    ]
    assert [(tile.label, tile.value) for tile in tiles(report_of(*stages))] == [
        ("Classes known", "5"),
        ("All classes", "81.3%"),
        ("New classes", "67.9%"),
        ("Base classes", "94.3%"),
        ("Network growth", "+514"),
    ]
    assert tiles(report_of(*stages))[3].note == "98.8% before any discovery"


def test_base_stage_alone(stages: tuple[StageSection, ...]) -> None:
    assert sentences(report_of(stages[0])) == [
        "The network learned 3 classes from labelled images.",
        "It now names 81.3% of all test images correctly.",
    ]
    assert [tile.label for tile in tiles(report_of(stages[0]))] == ["Classes known", "All classes"]


def test_novel_stage_alone_does_not_speak_of_labels(stages: tuple[StageSection, ...]) -> None:
    assert sentences(report_of(stages[1]))[0] == "The network found 2 classes in unlabelled images, in 1 stage."


def test_no_comparison_without_the_baseline(stages: tuple[StageSection, ...]) -> None:
    bare = replace(stages[1], baselines={"kmeans_features": None})
    assert len(sentences(report_of(stages[0], bare))) == 2


def test_the_comparison_is_with_the_better_clustering(stages: tuple[StageSection, ...]) -> None:
    rivals: Baselines = {"kmeans_pixels": {"new_head": 0.7}, "kmeans_features": {"new_head": 0.6, "base": "own"}}
    shown = sentences(report_of(stages[0], replace(stages[1], baselines=rivals)))[-1]
    assert shown.endswith("k-means on pixels gets 70.0%.")


def test_nothing_is_claimed_where_nothing_is_known(stages: tuple[StageSection, ...]) -> None:
    unscored = replace(
        stages[1],
        metrics={
            "old": None,
            "new": None,
            "all": None,
            "groups": {},
            "new_head": None,
            "old_head": None,
            "nmi": None,
            "ari": None,
            "matched_on": None,
        },
    )
    report = report_of(stages[0], unscored)
    assert "%" not in " ".join(sentences(report))
    assert [tile.label for tile in tiles(report)] == ["Classes known", "Network growth"]
