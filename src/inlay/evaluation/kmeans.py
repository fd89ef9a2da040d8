"""The plain baseline for a discovery stage: k-means on fixed vectors."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from inlay.evaluation.arrays import Values, to_ids
from inlay.evaluation.matching import match_clusters

__all__ = ["kmeans_baseline"]

_STARTS = 10


def kmeans_baseline(
    train_features: Values,
    test_features: Values,
    train_truth: Values,
    test_truth: Values,
    k: int,
    seed: int,
) -> float:
    """Accuracy on test images of k-means that saw the training images alone.

    Each test vector goes to the nearest centroid; clusters are matched to true classes on the training
    images. A test image whose class has no cluster counts as wrong.

    Args:
        train_features: Vectors of the unlabelled training images, [N, D].
        test_features: Vectors of the test images, [M, D].
        train_truth: True class of each training image, for matching alone, [N].
        test_truth: True class of each test image, [M].
        k: Number of clusters, 1 to N.
        seed: Seed of the starts of k-means, 10 of them.

    Returns:
        The share of test images in the cluster of their class, 0 to 1.

    Raises:
        ValueError: If vectors and classes do not fit each other, there are no test images, or k is wrong.
    """
    train, test = _matrix(train_features, "train_features"), _matrix(test_features, "test_features")
    train_classes, test_classes = to_ids(train_truth, "train_truth"), to_ids(test_truth, "test_truth")
    for vectors, classes, name in ((train, train_classes, "training"), (test, test_classes, "test")):
        if len(vectors) != len(classes) or len(classes) == 0:
            raise ValueError(f"{len(vectors)} {name} vectors but {len(classes)} true classes were given")
    from sklearn.cluster import KMeans  # takes seconds to import, so only when it is needed

    model = KMeans(k, n_init=_STARTS, random_state=seed).fit(train)
    known, columns = np.unique(train_classes, return_inverse=True)
    matched = match_clusters(model.labels_, columns, k, len(known))
    cluster_of = dict(zip(known.tolist(), matched.tolist(), strict=True))
    expected = np.array([cluster_of.get(value, -1) for value in test_classes.tolist()])
    return float((model.predict(test) == expected).mean())


def _matrix(features: Values, name: str) -> NDArray[np.float64]:
    array = np.asarray(features.detach().cpu() if isinstance(features, Tensor) else features, dtype=np.float64)
    if array.ndim != 2:
        raise ValueError(f"{name} must be a matrix [images, dimensions], got shape {array.shape}")
    return array
