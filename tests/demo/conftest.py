from collections.abc import Iterator

import pytest
import torch

from inlay.data import ImageSet
from inlay.data.demo import demo_digits
from inlay.demo import recipe


def _few(images: ImageSet, per_class: int) -> ImageSet:
    assert images.labels is not None
    places = [(images.labels == label).nonzero().flatten()[:per_class] for label in range(len(images.class_names))]
    return images.select(torch.cat(places))


@pytest.fixture(scope="module", autouse=True)
def small_demonstration() -> Iterator[None]:
    """The demonstration with forty images per digit and one epoch per stage."""
    train, test = demo_digits()
    small = _few(train, 40), _few(test, 20)
    quick = {"base.training.epochs": 1, "training.epochs": 1, "classifier.refit_per_class": 30}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "demo_digits", lambda: small)
        patch.setattr(recipe, "_CHANGES", {**recipe._CHANGES, **quick})
        yield
