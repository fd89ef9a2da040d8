import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.errors import InlayError
from inlay.evaluation.matching import Matching, map_truth
from inlay.evaluation.metrics import Scores, score, score_predictions

# Outputs: cat 0, dog 1 | stage 1: hen 2, (empty cluster) 3, fox 4 | stage 2: bee 5, ant 6; cow has none.
CLASS_STAGES = [0, 0, 1, 1, 1, 2, 2]
# One row per test image: right output, stage of the true class, prediction, new head, old head.
IMAGES = [
    (0, 0, 0, 5, 0),
    (0, 0, 0, 5, 0),
    (0, 0, 1, 6, 1),
    (0, 0, 4, 6, 4),
    (1, 0, 1, 5, 1),
    (1, 0, 5, 5, 1),
    (4, 1, 4, 5, 4),
    (4, 1, 2, 5, 2),
    (2, 1, 2, 6, 2),
    (2, 1, 2, 6, 2),
    (6, 2, 6, 6, 0),
    (6, 2, 6, 6, 3),
    (6, 2, 0, 6, 0),
    (5, 2, 5, 5, 0),
    (-1, 2, 5, 5, 0),
    (-1, 2, 6, 6, 2),
]


def hand_logits() -> torch.Tensor:
    logits = torch.zeros(len(IMAGES), len(CLASS_STAGES))
    for row, (_, _, prediction, new_head, old_head) in enumerate(IMAGES):
        logits[row, [new_head, old_head]] = 1.0
        logits[row, prediction] = 2.0
    return logits


def hand_truth() -> tuple[list[int], list[int]]:
    return [image[0] for image in IMAGES], [image[1] for image in IMAGES]


def check_hand_scores(scores: Scores) -> None:
    # Joint head: cat 2/4, dog 1/2, fox 1/2, hen 2/2, ant 2/3, bee 1/1, cow 0/2.
    assert scores.groups == {"base": 3 / 6, "stage1": 3 / 4, "stage2": 3 / 6}
    assert scores.old == (3 + 3) / 10
    assert scores.new == 3 / 6
    assert scores.all == 9 / 16
    assert scores.counts == {"old": 10, "new": 6, "all": 16}
    # Old outputs only: cat 2/4, dog 2/2, fox 1/2, hen 2/2. New outputs only: ant 3/3, bee 1/1, cow 0/2.
    assert scores.old_head == 7 / 10
    assert scores.new_head == 4 / 6
    # Cluster 6 holds ant 3 and cow 1, cluster 5 holds bee 1 and cow 1. Pairs of images together in both: 3;
    # in a cluster: 6 + 1 = 7; in a class: 3 + 0 + 1 = 4; of all 6 images: 15. Expected 7 * 4 / 15 = 28/15.
    assert scores.ari == pytest.approx((3 - 28 / 15) / ((7 + 4) / 2 - 28 / 15))
    # Mutual information: sum of p_ij log(p_ij / p_i p_j) over (6, ant), (6, cow), (5, bee), (5, cow).
    shared = (
        3 / 6 * math.log((3 / 6) / (4 / 6 * 3 / 6))
        + 1 / 6 * math.log((1 / 6) / (4 / 6 * 2 / 6))
        + 1 / 6 * math.log((1 / 6) / (2 / 6 * 1 / 6))
        + 1 / 6 * math.log((1 / 6) / (2 / 6 * 2 / 6))
    )
    of_clusters = -(4 / 6 * math.log(4 / 6) + 2 / 6 * math.log(2 / 6))
    of_classes = -(3 / 6 * math.log(3 / 6) + 1 / 6 * math.log(1 / 6) + 2 / 6 * math.log(2 / 6))
    assert scores.nmi == pytest.approx(shared / ((of_clusters + of_classes) / 2))


def test_case_computed_by_hand_from_logits() -> None:
    truth, stages = hand_truth()
    scores = score(hand_logits(), truth, CLASS_STAGES, stages, matched_on="train")
    check_hand_scores(scores)
    assert scores.matched_on == "train"


def test_case_computed_by_hand_from_predictions() -> None:
    truth, stages = hand_truth()
    columns = np.array(IMAGES)
    scores = score_predictions(
        columns[:, 2], truth, CLASS_STAGES, stages, new_head=columns[:, 3], old_head=columns[:, 4]
    )
    check_hand_scores(scores)


def test_missing_heads_are_none() -> None:
    truth, stages = hand_truth()
    scores = score_predictions([image[2] for image in IMAGES], truth, CLASS_STAGES, stages)
    assert (scores.new_head, scores.old_head, scores.nmi, scores.ari) == (None, None, None, None)
    assert (scores.old, scores.new, scores.all) == (6 / 10, 3 / 6, 9 / 16)


def test_after_the_base_stage_everything_is_old() -> None:
    logits = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    scores = score(logits, [0, 0, 1, 1], [0, 0])
    assert scores == Scores(
        old=3 / 4,
        new=None,
        all=3 / 4,
        groups={"base": 3 / 4},
        new_head=None,
        old_head=3 / 4,
        nmi=None,
        ari=None,
        matched_on=None,
        counts={"old": 4, "new": 0, "all": 4},
    )
    assert score_predictions([0, 0, 1, 0], [0, 0, 1, 1], [0, 0]) == scores


def test_a_stage_without_test_images_has_no_score() -> None:
    scores = score([[1.0, 0.0, 0.0]], [0], [0, 1, 2])
    assert scores.groups == {"base": 1.0, "stage1": None, "stage2": None}
    assert (scores.old, scores.new, scores.new_head, scores.nmi, scores.ari) == (1.0, None, None, None, None)


def test_classes_without_a_cluster_are_kept_apart_in_nmi_and_ari() -> None:
    # Two lost classes, each in a cluster of its own: a perfect clustering only if they are not one class.
    logits = [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    scores = score(logits, [-1, -1, -2, -2], [0, 1, 1], [1, 1, 1, 1])
    assert (scores.nmi, scores.ari, scores.new, scores.new_head) == (1.0, 1.0, 0.0, 0.0)


@st.composite
def scored_images(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[list[float]]]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    class_stages = [stage for stage, size in enumerate(sizes) for _ in range(size)]
    stages = draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=20))
    truth = [draw(st.sampled_from([-1, *(c for c, s in enumerate(class_stages) if s == k)])) for k in stages]
    row = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=len(class_stages), max_size=len(class_stages))
    return class_stages, stages, truth, [draw(row) for _ in stages]


def argmax_by_loop(row: list[float], outputs: list[int]) -> int:
    best = outputs[0]
    for output in outputs:
        if row[output] > row[best]:
            best = output
    return best


def accuracy_by_loop(
    images: list[int], truth: list[int], logits: list[list[float]], outputs: list[int]
) -> float | None:
    right = 0
    for image in images:
        right += argmax_by_loop(logits[image], outputs) == truth[image]
    return right / len(images) if images else None


@given(scored_images())
@settings(deadline=None)
@pytest.mark.filterwarnings("ignore:The number of unique classes:UserWarning")
def test_scores_agree_with_loops_and_all_is_the_weighted_mean(
    case: tuple[list[int], list[int], list[int], list[list[float]]],
) -> None:
    class_stages, stages, truth, logits = case
    scores = score(logits, truth, class_stages, stages)
    current, images, outputs = class_stages[-1], range(len(truth)), list(range(len(class_stages)))
    new = [i for i in images if stages[i] == current and current > 0]
    old = [i for i in images if i not in new]
    new_outputs = [c for c in outputs if class_stages[c] == current]
    old_outputs = [c for c in outputs if class_stages[c] < current] or outputs
    assert scores.old == accuracy_by_loop(old, truth, logits, outputs)
    assert scores.new == accuracy_by_loop(new, truth, logits, outputs)
    assert scores.all == accuracy_by_loop(list(images), truth, logits, outputs)
    assert scores.old_head == accuracy_by_loop(old, truth, logits, old_outputs)
    assert scores.new_head == accuracy_by_loop(new, truth, logits, new_outputs)
    for stage, value in enumerate(scores.groups.values()):
        of_stage = [i for i in images if stages[i] == stage]
        assert value == accuracy_by_loop(of_stage, truth, logits, outputs)
    weighted = (len(old) * (scores.old or 0) + len(new) * (scores.new or 0)) / len(truth)
    assert scores.all == pytest.approx(weighted)


@given(st.permutations(range(4)), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_the_numbering_of_clusters_changes_nothing(order: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    names = ["ant", "bee", "cow", "elk"]
    # Three images of each class share a cluster of their own and two are anywhere: no other cluster holds as
    # many of the class, so the best pairing is unique and can only move with the numbering.
    train_truth = [name for name in names for _ in range(5)]
    clusters = np.concatenate([[own] * 3 + generator.integers(0, 4, 2).tolist() for own in range(4)])
    test_truth = [*generator.choice(names, 30).tolist(), "cat", "dog"]
    logits = generator.normal(size=(32, 6))

    def scores_with(numbering: list[int]) -> Scores:
        renumbered = np.array(numbering)[clusters]
        moved = logits.copy()
        moved[:, 2 + np.array(numbering)] = logits[:, 2:]
        matching = Matching.solve(1, renumbered, train_truth, 4, names, "train")
        truth = map_truth(test_truth, ["cat", "dog"], [matching])
        return score(moved, truth, [0, 0, 1, 1, 1, 1], matched_on="train")

    plain, permuted = scores_with([0, 1, 2, 3]), scores_with(order)
    assert permuted.nmi == pytest.approx(plain.nmi)
    assert permuted.ari == pytest.approx(plain.ari)
    assert replace(permuted, nmi=plain.nmi, ari=plain.ari) == plain


def test_scores_that_do_not_add_up_are_refused() -> None:
    truth, stages = hand_truth()
    scores = score(hand_logits(), truth, CLASS_STAGES, stages)
    with pytest.raises(RuntimeError, match="not the weighted mean of old and new"):
        replace(scores, all=0.6)
    with pytest.raises(RuntimeError, match="not the weighted mean of old and new"):
        replace(scores, counts={"old": 10, "new": 6, "all": 17})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0, 0.0]], [0], [0]), "2 outputs but 1 class stages were given"),
        ((np.zeros((0, 2)), [], [0, 0]), "at least one test image"),
        (([[1.0, 0.0]], [0, 1], [0, 0]), "predictions has 1 ids for 2 images"),
        (([[1.0, 0.0]], [2], [0, 0]), "truth_ids must be smaller than the number of outputs, 2"),
        (([[1.0, 0.0]], [-1], [0, 1]), "truth_stages is needed"),
        (([[1.0, 0.0]], [0], [0, 1], [0, 0]), "truth_stages has 2 stages for 1 images"),
        (([[1.0, 0.0]], [-1], [0, 1], [2]), "a stage that brought no output"),
        (([[1.0, 0.0]], [0], [0, 1], [1]), "disagree on the stage of a class"),
    ],
)
def test_misfitting_input_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score(*arguments)


def test_predictions_outside_their_outputs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one test image"):
        score_predictions([], [], [0])
    with pytest.raises(ValueError, match="predictions holds an id that is not among its outputs"):
        score_predictions([2], [0], [0, 1])
    with pytest.raises(ValueError, match="new_head holds an id that is not among its outputs"):
        score_predictions([1], [1], [0, 1], new_head=[0])
    with pytest.raises(ValueError, match="old_head holds an id that is not among its outputs"):
        score_predictions([0], [0], [0, 1], old_head=[1])


def test_clusters_that_are_the_classes_under_other_numbers_have_an_nmi_of_one_at_most() -> None:
    truth, clusters = [3, 4, 3, 1, 4, 3, 2], [2, 3, 2, 4, 3, 2, 1]
    scores = score_predictions(clusters, truth, [0, 1, 1, 1, 1], new_head=clusters)
    assert scores.nmi == scores.ari == 1.0
    assert Scores.from_json(scores.to_json()) == scores


def scores_json(**changes: object) -> dict[str, object]:
    truth, stages = hand_truth()
    return score(hand_logits(), truth, CLASS_STAGES, stages, matched_on="test").to_json() | changes


def test_scores_json_has_these_keys_and_comes_back() -> None:
    data = scores_json()
    assert " ".join(data) == "old new all groups new_head old_head nmi ari matched_on counts"
    assert Scores.from_json(json.loads(json.dumps(data))).to_json() == data
    base = score([[1.0]], [0], [0])
    assert Scores.from_json(json.loads(json.dumps(base.to_json()))) == base


def test_ari_alone_may_be_negative() -> None:
    assert Scores.from_json(scores_json(ari=-0.5)).ari == -0.5


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ([], "they do not have exactly the keys"),
        (scores_json(extra=1), "they do not have exactly the keys"),
        (scores_json(groups=[]), "groups or counts are not what they should be"),
        (scores_json(counts={"old": 1}), "groups or counts are not what they should be"),
        (scores_json(counts={"old": 10, "new": 6, "all": 16.5}), "a count is not a number of images"),
        (scores_json(old="0.6"), "a score is not a fraction"),
        (scores_json(all=None), "a score is not a fraction"),
        (scores_json(nmi=60.0), "a score is not a fraction"),
        (scores_json(groups={"base": True}), "a score is not a fraction"),
        (scores_json(new_head=-0.1), "a score is not a fraction"),
        (scores_json(nmi=-0.1), "a score is not a fraction"),
        (scores_json(groups={"base": -0.1}), "a score is not a fraction"),
        (scores_json(ari=-1.1), "ari is not a number from -1 to 1"),
        (scores_json(matched_on="val"), "matched_on is 'val'"),
        (scores_json(all=0.1), "the accuracy on all images is not the weighted mean"),
    ],
)
def test_damaged_scores_are_refused(data: object, reason: str) -> None:
    with pytest.raises(InlayError) as caught:
        Scores.from_json(data)
    assert str(caught.value).startswith(f"The scores were damaged or edited by hand ({reason}")
