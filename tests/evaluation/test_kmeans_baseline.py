import numpy as np
import pytest
import torch

from inlay.evaluation.kmeans import kmeans_baseline

TRAIN = torch.tensor([[0.0], [1.0], [2.0], [10.0], [11.0], [12.0]])
TRUTH = [7, 7, 7, 4, 4, 4]


def test_counts_by_hand() -> None:
    # Centroids 1 and 11 split the line at 6, so 5.9 goes with class 7 and 6.1 with class 4.
    test = torch.tensor([[-3.0], [5.9], [6.1], [30.0], [5.0]])
    assert kmeans_baseline(TRAIN, test, TRUTH, [7, 7, 4, 4, 4], k=2, seed=0) == 4 / 5


def test_clusters_are_matched_on_the_training_images() -> None:
    # Matched on the test images, the two clusters would change names and all would be right.
    test = torch.tensor([[0.0], [1.0], [11.0]])
    assert kmeans_baseline(TRAIN, test, TRUTH, [4, 4, 7], k=2, seed=0) == 0


def test_the_majority_decides_the_match() -> None:
    truth = [7, 7, 4, 4, 4, 4]
    assert kmeans_baseline(TRAIN, TRAIN, truth, truth, k=2, seed=0) == 5 / 6


def test_a_class_without_a_cluster_is_wrong() -> None:
    assert kmeans_baseline(TRAIN, TRAIN, [0, 0, 1, 2, 2, 2], [0, 0, 1, 2, 2, 2], k=2, seed=0) == 5 / 6
    # Class 9 does not occur in training.
    assert kmeans_baseline(TRAIN, TRAIN[:4], TRUTH, [7, 7, 9, 4], k=2, seed=0) == 3 / 4


def test_names_of_classes_and_order_of_images_do_not_matter() -> None:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(4, 5)) * 2
    truth = np.arange(120) % 4
    train, test = (centres[truth] + generator.normal(size=(120, 5)) for _ in range(2))
    score = kmeans_baseline(train, test, truth, truth, k=4, seed=0)
    assert 0.5 < score < 1
    renamed = np.array([2, 0, 3, 1])[truth]
    assert kmeans_baseline(train, test, renamed, renamed, k=4, seed=0) == score
    order, test_order = generator.permutation(120), generator.permutation(120)
    shuffled = kmeans_baseline(train[order], test[test_order], truth[order], truth[test_order], k=4, seed=0)
    # Another order brings other starts, which may end in an optimum that differs by an image.
    assert shuffled == pytest.approx(score, abs=2 / 120)


def test_rejects_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="6 training vectors but 5 true classes"):
        kmeans_baseline(TRAIN, TRAIN, TRUTH[:5], TRUTH, k=2, seed=0)
    with pytest.raises(ValueError, match="0 test vectors"):
        kmeans_baseline(TRAIN, TRAIN[:0], TRUTH, [], k=2, seed=0)
    with pytest.raises(ValueError, match="train_features must be a matrix"):
        kmeans_baseline(TRAIN[:, 0], TRAIN, TRUTH, TRUTH, k=2, seed=0)
