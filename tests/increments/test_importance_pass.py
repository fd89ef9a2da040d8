import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from inlay.engine.order import Order
from inlay.engine.randomness import derive_seed
from inlay.increments.importance_pass import follow_stage, measured_importance
from inlay.increments.increment import Increment
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


@pytest.mark.parametrize("training", [False, True])
def test_the_classifier_is_left_as_it_was(training: bool) -> None:
    stage = exact_stage(afc.FAIR)
    assert stage.before is not None
    kept = {name: value.clone() for name, value in stage.before.state_dict().items()}
    rows = torch.nonzero(stage.labels < stage.old_classes).flatten()
    measured_importance(stage.of_rows(rows), stage.before, GROUPS, nca, training=training)
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


def _shuffled(stage: Increment) -> list[list[int]]:
    rows: list[list[int]] = (
        Order(len(stage.labels), stage.training.batch, derive_seed(stage.seed, "importance")).epoch(0).tolist()
    )
    return rows


def test_in_train_mode_batches_are_normalised_by_themselves() -> None:
    stage = exact_stage(afc.FAIR, stage__batch=8)
    assert stage.before is not None
    old = stage.of_rows(torch.nonzero(stage.labels < stage.old_classes).flatten())
    found = measured_importance(old, stage.before, GROUPS, nca, training=True)
    probe = copy.deepcopy(stage.before).train()
    totals = [[0.0] * channels for channels in (4, 6, 8)]
    for rows in _shuffled(old):
        inputs = old.form.prepare(old.pixels[rows]).requires_grad_()
        features, maps = features_and_maps(probe.network, inputs, GROUPS)
        loss = nca_loss(probe.head(features), old.labels[rows])
        for group, gradient in enumerate(torch.autograd.grad(loss, maps)):
            for channel in range(gradient.shape[1]):
                totals[group][channel] += sum(float(value) ** 2 for value in gradient[:, channel].flatten()) / len(rows)
    for values, wanted in zip(found.values(), totals, strict=True):
        mean = sum(wanted) / len(wanted)
        assert values.tolist() == pytest.approx([value / mean for value in wanted], rel=1e-9)


def test_running_statistics_follow_the_images_of_the_stage() -> None:
    stage = exact_stage(afc.FAIR, stage__batch=8)
    assert stage.before is not None
    network = copy.deepcopy(stage.before.network)
    norm = next(module for module in network.modules() if isinstance(module, nn.BatchNorm2d))
    first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    assert norm.running_mean is not None and norm.running_var is not None
    mean, variance = norm.running_mean.tolist(), norm.running_var.tolist()
    for rows in _shuffled(stage):
        with torch.no_grad():
            maps = first(stage.form.prepare(stage.pixels[rows]))
        for channel in range(maps.shape[1]):
            values = maps[:, channel].flatten().tolist()
            centre = sum(values) / len(values)
            spread = sum((value - centre) ** 2 for value in values) / (len(values) - 1)
            mean[channel] = 0.9 * mean[channel] + 0.1 * centre
            variance[channel] = 0.9 * variance[channel] + 0.1 * spread
    weights = {name: value.clone() for name, value in network.named_parameters()}
    follow_stage(stage, network)
    assert norm.running_mean.tolist() == pytest.approx(mean, rel=1e-9)
    assert norm.running_var.tolist() == pytest.approx(variance, rel=1e-9)
    assert not any(module.training for module in network.modules())
    assert all(torch.equal(value, weights[name]) for name, value in network.named_parameters())


def test_a_network_without_batch_norms_sees_no_images() -> None:
    stage = exact_stage(afc.FAIR)
    # Images of three channels would not fit the network.
    follow_stage(replace(stage, pixels=stage.pixels.expand(-1, 3, -1, -1)), nn.Conv2d(1, 2, 1))
