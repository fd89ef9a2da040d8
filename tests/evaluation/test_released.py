import numpy as np
import pytest

from inlay.evaluation.released import relabelled_in_place, released_accuracies


def test_a_class_is_relabelled_again_by_a_later_one() -> None:
    # Two old classes; the new classes 2, 3, 4 belong to clusters 1, 2, 0.
    truth = [0, 1, 2, 3, 4]
    # 2 becomes 3; then 3, both of them, becomes 4; then 4, all of them, becomes 2.
    assert relabelled_in_place(truth, [1, 2, 0], 2).tolist() == [0, 1, 2, 2, 2]
    # The identity and one that only moves down are harmless.
    assert relabelled_in_place(truth, [0, 1, 2], 2).tolist() == truth


def test_relabelling_leaves_the_labels_that_were_given() -> None:
    truth = np.array([2, 3])
    relabelled_in_place(truth, [1, 0], 2)
    assert truth.tolist() == [2, 3]


def test_a_sure_novel_head_counts_against_its_own_image() -> None:
    joint = [[5.0, 0.0, 0.0], [0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]
    truth, clusters = [0, 2, 2], [0]
    quiet, sure = [[0.0], [0.0], [0.0]], [[0.0], [3.0], [0.0]]
    assert released_accuracies(joint, quiet, truth, clusters, 2) == {"old": 1.0, "new": 1.0, "all": 1.0}
    assert released_accuracies(joint, sure, truth, clusters, 2) == pytest.approx({"old": 1.0, "new": 0.5, "all": 2 / 3})
    assert released_accuracies(joint, None, truth, clusters, 2)["new"] == 1.0


def test_both_kinds_of_images_are_needed() -> None:
    with pytest.raises(ValueError, match="old and of new"):
        released_accuracies([[1.0, 0.0]], None, [0], [0], 1)
