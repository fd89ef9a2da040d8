from dataclasses import replace

import pytest
import torch

from inlay.increments.importance_pass import measured_importance
from inlay.increments.outputs import features_and_maps
from inlay.increments.proxy_head import nca_loss
from inlay.increments.proxy_network import nca
from inlay.increments.systems import afc
from proxy_stages import GROUPS, exact_stage


# The last batch is smaller than the others, and all images are in one.
@pytest.mark.parametrize("batch", [5, 40])
def test_importance_is_the_share_of_squared_gradients_image_by_image(batch: int) -> None:
    stage = exact_stage(afc.FAIR, stage__batch=batch)
    assert stage.before is not None
    classifier = stage.before
    rows = torch.nonzero(stage.labels < stage.old_classes).flatten()
    found = measured_importance(stage.of_rows(rows), classifier, GROUPS, nca)
    totals = [[0.0] * channels for channels in (4, 6, 8)]
    for row in rows.tolist():
        inputs = stage.form.prepare(stage.pixels[row : row + 1]).requires_grad_()
        features, maps = features_and_maps(classifier.network, inputs, GROUPS)
        loss = nca_loss(classifier.head(features), stage.labels[row : row + 1])
        for group, gradient in enumerate(torch.autograd.grad(loss, maps)):
            for channel, plane in enumerate(gradient[0]):
                totals[group][channel] += sum(float(value) ** 2 for value in plane.flatten())
    assert list(found) == list(GROUPS)
    for values, wanted in zip(found.values(), totals, strict=True):
        mean = sum(wanted) / len(wanted)
        assert values.tolist() == pytest.approx([value / mean for value in wanted], rel=1e-9)


def test_the_classifier_is_left_as_it_was() -> None:
    stage = exact_stage(afc.FAIR)
    assert stage.before is not None
    kept = {name: value.clone() for name, value in stage.before.state_dict().items()}
    rows = torch.nonzero(stage.labels < stage.old_classes).flatten()
    measured_importance(stage.of_rows(rows), stage.before, GROUPS, nca)
    assert all(torch.equal(value, kept[name]) for name, value in stage.before.state_dict().items())
    assert not stage.before.training
    assert all(p.grad is None and not p.requires_grad for p in stage.before.parameters())


def test_images_are_augmented_as_in_training() -> None:
    stage = exact_stage(afc.FAIR)
    assert stage.before is not None
    old = stage.of_rows(torch.nonzero(stage.labels < stage.old_classes).flatten())
    plain, *views = (
        measured_importance(replace(old, recipe=old.recipe.changed({"view": view})), stage.before, GROUPS, nca)
        for view in ("none", "weak-bright", "weak-bright")
    )
    assert not torch.allclose(plain["layer1"], views[0]["layer1"])
    assert torch.equal(views[0]["layer1"], views[1]["layer1"])
