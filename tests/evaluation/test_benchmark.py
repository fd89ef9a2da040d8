import json

import numpy as np
import pytest
import torch
from torch import Tensor

from inlay.data import ImageSet
from inlay.errors import InlayError
from inlay.evaluation import score
from inlay.evaluation.benchmark import StageTruth, match_on_test, match_stage, score_learner
from inlay.evaluation.matching import Matching


def labelled(names: list[str], first: int = 0) -> ImageSet:
    """One image per name; each is told by its brightness."""
    pixels = np.arange(first, first + len(names), dtype=np.uint8)[:, None, None].repeat(2, 1).repeat(2, 2)
    return ImageSet.from_arrays(pixels, names)


def logits_for(outputs: list[int], classes: int) -> Tensor:
    """Logits whose largest value is at the given output."""
    logits = torch.zeros(len(outputs), classes)
    logits[torch.arange(len(outputs)), outputs] = 1
    return logits


def clusters(images: ImageSet, of_image: list[int]) -> dict[str, int]:
    return dict(zip(images.fingerprints(), of_image, strict=True))


def test_match_stage_pairs_clusters_with_the_names_they_share_most_images_with() -> None:
    images = labelled(["cat", "cat", "cat", "dog", "dog"])
    truth = match_stage(1, clusters(images, [1, 1, 0, 0, 0]), 2, images)
    assert truth == StageTruth(Matching(1, ("dog", "cat"), "train"), ("cat", "dog"))


def test_match_stage_leaves_out_images_that_the_stage_did_not_see() -> None:
    seen = labelled(["cat", "dog", "dog"])
    everything = labelled(["cat", "dog", "dog", "bird", "cat"])
    assert match_stage(1, clusters(seen, [0, 1, 1]), 2, everything).names == ("cat", "dog")


def test_match_stage_does_not_depend_on_the_order_of_the_images() -> None:
    images = labelled(["cat", "cat", "dog", "dog"])
    table = clusters(images, [1, 1, 0, 0])
    assert match_stage(1, table, 2, images.select([3, 0, 2, 1])) == match_stage(1, table, 2, images)


def test_an_empty_cluster_stands_for_nothing_or_for_a_class_that_no_other_took() -> None:
    images = labelled(["cat", "cat", "dog"])
    three = match_stage(1, clusters(images, [0, 0, 2]), 3, images)
    assert three.matching.truth_of == ("cat", None, "dog")
    all_in_one = match_stage(1, clusters(images, [1, 1, 1]), 2, images)
    assert all_in_one.matching.truth_of == ("dog", "cat")


def test_with_fewer_clusters_than_classes_the_names_are_kept() -> None:
    images = labelled(["cat", "cat", "dog", "dog", "dog", "emu"])
    truth = match_stage(1, clusters(images, [0, 0, 1, 1, 1, 1]), 2, images)
    assert truth.matching.truth_of == ("cat", "dog") and truth.names == ("cat", "dog", "emu")


def test_match_stage_refuses_images_of_another_set() -> None:
    images, others = labelled(["cat", "dog"]), labelled(["cat", "dog"], first=100)
    with pytest.raises(InlayError, match=r"None of the images given .* stage 2"):
        match_stage(2, clusters(images, [0, 1]), 2, others)


def test_match_stage_refuses_images_without_labels() -> None:
    images = labelled(["cat", "dog"])
    with pytest.raises(InlayError, match="These images have no labels"):
        match_stage(1, clusters(images, [0, 1]), 2, images.without_labels())


def test_match_stage_refuses_classes_of_other_stages() -> None:
    images = labelled(["cat", "dog", "emu"])
    with pytest.raises(InlayError, match="Some images of stage 2 are labelled 'dog', a class of another stage"):
        match_stage(2, clusters(images, [0, 1, 1]), 2, images, known=["ant", "dog"])


def test_a_stage_truth_survives_json() -> None:
    truth = StageTruth(Matching(2, ("dog", None), "train"), ("dog", "emu"))
    assert StageTruth.from_json(json.loads(json.dumps(truth.to_json()))) == truth


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ([], "a stage does not have exactly the keys matching, names"),
        ({"matching": Matching(1, ("dog",), "train").to_json()}, "a stage does not have exactly the keys"),
        ({"matching": {}, "names": []}, "it does not have exactly the keys"),
        ({"matching": Matching(1, ("dog",), "train").to_json(), "names": "dog"}, "names is not a list of names"),
        ({"matching": Matching(1, ("dog",), "train").to_json(), "names": [1]}, "names is not a list of names"),
        ({"matching": Matching(1, ("dog", None), "train").to_json(), "names": ["cat"]}, "a cluster stands for a class"),
    ],
)
def test_a_damaged_stage_truth_is_refused(data: object, reason: str) -> None:
    with pytest.raises(InlayError) as caught:
        StageTruth.from_json(data)
    assert str(caught.value).startswith(f"The matching was damaged or edited by hand ({reason}")


def test_match_on_test_matches_all_stages_together() -> None:
    # Outputs: 0, 1 base; 2, 3 of stage 1; 4 of stage 2.
    test = labelled(["ant", "cat", "cat", "dog", "dog", "emu", "emu"])
    logits = logits_for([0, 3, 3, 4, 4, 2, 2], 5)
    found = match_on_test(logits, test, ["ant", "bee"], {1: [2, 3], 2: [4]})
    assert found == {
        1: StageTruth(Matching(1, ("emu", "cat"), "test"), ("emu", "cat")),
        2: StageTruth(Matching(2, ("dog",), "test"), ("dog",)),
    }


def test_match_on_test_looks_at_the_outputs_of_the_stages_alone() -> None:
    test = labelled(["cat", "cat", "dog"])
    logits = torch.tensor([[9.0, 0.0, 1.0], [9.0, 0.0, 1.0], [9.0, 2.0, 0.0]])
    assert match_on_test(logits, test, ["ant"], {1: [1, 2]})[1].matching.truth_of == ("dog", "cat")


def test_classes_that_match_on_test_leaves_without_a_cluster_count_as_wrong() -> None:
    # Outputs: 0 base; 1 of stage 1; 2 of stage 2. Emu and fox find no cluster.
    test = labelled(["ant", "cat", "cat", "dog", "dog", "emu", "fox"])
    logits = logits_for([0, 1, 1, 2, 2, 1, 2], 3)
    found = match_on_test(logits, test, ["ant"], {1: [1], 2: [2]})
    assert found == {
        1: StageTruth(Matching(1, ("cat",), "test"), ("cat",)),
        2: StageTruth(Matching(2, ("dog",), "test"), ("dog", "emu", "fox")),
    }
    scores, left_out = score_learner(logits, test, ["ant"], [0, 1, 2], [found[1], found[2]])
    assert (scores.old, scores.new, scores.all, left_out) == (1.0, 2 / 4, 5 / 7, 0)


def test_match_on_test_without_images_of_new_classes() -> None:
    found = match_on_test(logits_for([0, 0], 3), labelled(["ant", "ant"]), ["ant"], {1: [1, 2]})
    assert found == {1: StageTruth(Matching(1, (None, None), "test"), ())}


def test_two_stages_scored_by_hand() -> None:
    # Outputs: 0 ant, 1 bee, 2 dog, 3 cat (stage 1), 4 gnu, 5 fox (stage 2).
    truths = [
        StageTruth(Matching(1, ("dog", "cat"), "train"), ("cat", "dog")),
        StageTruth(Matching(2, ("gnu", "fox"), "train"), ("fox", "gnu")),
    ]
    test = labelled(["ant", "bee", "cat", "dog", "fox", "fox", "gnu", "elk"])
    logits = logits_for([0, 4, 3, 3, 5, 4, 4, 0], 6)
    scores, left_out = score_learner(logits, test, ["ant", "bee"], [0, 0, 1, 1, 2, 2], truths)
    assert left_out == 1 and scores.counts == {"old": 4, "new": 3, "all": 7}
    assert scores.groups == pytest.approx({"base": 1 / 2, "stage1": 1 / 2, "stage2": 2 / 3})
    assert (scores.old, scores.new, scores.all) == pytest.approx((2 / 4, 2 / 3, 4 / 7))
    assert scores.matched_on == "train"
    by_hand = score(logits[:7], [0, 1, 3, 2, 5, 5, 4], [0, 0, 1, 1, 2, 2], matched_on="train")
    assert scores == by_hand


def test_classes_without_a_cluster_count_as_wrong() -> None:
    truths = [StageTruth(Matching(1, ("cat", "dog"), "train"), ("cat", "dog", "emu"))]
    test = labelled(["ant", "cat", "dog", "emu"])
    scores, left_out = score_learner(logits_for([0, 1, 2, 2], 3), test, ["ant"], [0, 1, 1], truths)
    assert left_out == 0 and scores.new == pytest.approx(2 / 3) and scores.all == pytest.approx(3 / 4)


def test_an_empty_cluster_is_wrong_where_it_is_predicted() -> None:
    truths = [StageTruth(Matching(1, ("cat", None), "train"), ("cat",))]
    test = labelled(["ant", "cat", "cat"])
    scores, _ = score_learner(logits_for([0, 1, 2], 3), test, ["ant"], [0, 1, 1], truths)
    assert scores.new == 0.5


def test_one_stage_matched_on_test_marks_the_whole_score() -> None:
    truths = [
        StageTruth(Matching(1, ("cat",), "train"), ("cat",)),
        StageTruth(Matching(2, ("dog",), "test"), ("dog",)),
    ]
    test = labelled(["ant", "cat", "dog"])
    assert score_learner(logits_for([0, 1, 2], 3), test, ["ant"], [0, 1, 2], truths)[0].matched_on == "test"


def test_before_any_stage_nothing_is_matched() -> None:
    scores, _ = score_learner(logits_for([0, 0], 2), labelled(["ant", "bee"]), ["ant", "bee"], [0, 0], [])
    assert scores.matched_on is None and scores.all == 0.5 and scores.new is None


def test_base_classes_are_told_by_name_not_by_their_place_in_the_test_set() -> None:
    test = labelled(["bee", "ant"]).of_classes(["bee", "ant"])
    scores, _ = score_learner(logits_for([1, 0], 2), test, ["ant", "bee"], [0, 0], [])
    assert scores.all == 1.0


def test_test_images_of_unseen_classes_alone_are_refused() -> None:
    with pytest.raises(InlayError, match="None of the test images is of a class of this run; its classes are: ant"):
        score_learner(logits_for([0], 1), labelled(["yak"]), ["ant"], [0], [])
