from dataclasses import replace

import pytest
import torch
from torch import Tensor

from inlay.discovery.neighbours import nearest_neighbours
from inlay.engine.batch import Batch
from inlay.engine.feed import ResidentFeed
from inlay.methods.model import StageOutputs, neighbours_as_companions
from inlay.methods.task import StageTask
from tiny_stage import OLD_CLASSES, batch_of, images_of, outputs_of, quick, tiny_model, tiny_task

PLAIN = {"first_view": "none", "second_view": "none"}


def pixels(task: StageTask, indices: list[int]) -> Tensor:
    return task.prepare(images_of(task)[indices])


def views_of(task: StageTask, batch: Batch) -> tuple[Tensor, Tensor]:
    return StageOutputs(task, tiny_model(task), batch).views


def test_without_partners_both_views_show_the_same_images() -> None:
    task = tiny_task(quick(changes={**PLAIN, "assignment.partner_share": 0.0}))
    batch = batch_of(task)
    first, second = views_of(task, batch)
    expected = pixels(task, batch.indices.tolist())
    assert torch.equal(first, expected) and torch.equal(second, expected)


def test_a_partner_share_of_one_shows_a_near_neighbour_in_the_second_view() -> None:
    task = tiny_task(quick(changes={**PLAIN, "assignment.partner_share": 1.0, "assignment.neighbours": 3}))
    batch = batch_of(task)
    first, second = views_of(task, batch)
    assert torch.equal(first, pixels(task, batch.indices.tolist()))
    near = nearest_neighbours(task.frozen_features, 3)
    for row, index in zip(second, batch.indices.tolist(), strict=True):
        candidates = pixels(task, near[index].tolist())
        assert any(torch.equal(row, candidate) for candidate in candidates)


def test_a_small_stage_has_fewer_neighbours_than_asked_for() -> None:
    task = tiny_task(quick(changes={**PLAIN, "assignment.partner_share": 1.0, "assignment.neighbours": 5}))
    few = replace(task, feed=ResidentFeed(images_of(task)[:3]))
    batch = batch_of(few, size=3)
    assert batch.indices.tolist() == [0, 1, 2]
    _, second = views_of(few, batch)
    for index, row in enumerate(second):
        others = [other for other in range(3) if other != index]
        assert any(torch.equal(row, pixels(few, [other])[0]) for other in others)


def test_companions_are_a_function_of_key_and_image() -> None:
    task = tiny_task(quick(changes={"assignment.partner_share": 0.5}))
    companions = neighbours_as_companions(task)
    assert companions is not None
    indices = torch.arange(len(task.feed))
    drawn = companions(indices, 7)
    backwards = companions(indices.flip(0), 7)
    assert torch.equal(drawn, backwards.flip(0)) and not torch.equal(drawn, companions(indices, 8))
    themselves = int((drawn == indices).sum())
    assert 0 < themselves < len(indices)


def test_without_a_partner_share_there_are_no_companions() -> None:
    assert neighbours_as_companions(tiny_task(quick(changes={"assignment.partner_share": 0.0}))) is None


def test_neighbours_are_not_looked_for_where_nothing_is_trained() -> None:
    changes = {"assignment.partner_share": 0.5, "training.epochs": 0}
    assert neighbours_as_companions(tiny_task(quick(changes=changes))) is None


def test_each_view_has_its_own_augmentation() -> None:
    task = tiny_task(quick(changes={"first_view": "none", "second_view": "glyph"}))
    batch = batch_of(task)
    first, second = views_of(task, batch)
    expected = pixels(task, batch.indices.tolist())
    assert torch.equal(first, expected) and not torch.allclose(second, expected, atol=0.1)


def test_two_views_of_one_augmentation_are_drawn_apart() -> None:
    task = tiny_task(quick())
    first, second = views_of(task, batch_of(task))
    assert not torch.allclose(first, second, atol=0.1)
    again, _ = views_of(task, batch_of(task))
    assert torch.equal(first, again)


def test_frozen_features_have_no_gradient() -> None:
    task = tiny_task(quick())
    task.network.requires_grad_(True)
    outputs = outputs_of(task, tiny_model(task))
    assert not outputs.frozen.requires_grad and not task.frozen_features.requires_grad
    assert outputs.first.requires_grad and outputs.second.requires_grad
    assert not torch.equal(outputs.first, outputs.frozen)


@pytest.mark.parametrize("detach", [True, False])
def test_detach_separates_the_classifier_from_the_features(detach: bool) -> None:
    task = tiny_task(quick(changes={"classifier.detach": detach}))
    outputs = outputs_of(task, tiny_model(task))
    features = outputs.for_classifier(outputs.first)
    assert features.requires_grad is not detach and torch.equal(features, outputs.first)


def test_two_heads_score_apart() -> None:
    task = tiny_task(quick())
    model = tiny_model(task)
    assert model.novel_head is not None
    outputs = outputs_of(task, model)
    assert torch.equal(outputs.novel[0], model.novel_head(outputs.first))
    assert torch.equal(outputs.novel[1], model.novel_head(outputs.second))
    assert model.joint_head is not None and torch.equal(outputs.joint, model.joint_head(outputs.first))
    assert model.parts().keys() == {"trunk", "joint_head", "projector", "novel_head"}


def test_one_head_scores_new_classes_by_its_new_rows() -> None:
    task = tiny_task(quick())
    model = tiny_model(task, novel_head=False)
    outputs = outputs_of(task, model)
    assert outputs.novel[0].shape == (12, task.classes)
    assert torch.equal(outputs.novel[0], outputs.joint[:, OLD_CLASSES:])
    assert model.parts().keys() == {"trunk", "joint_head", "projector"}


def test_each_quantity_is_computed_once() -> None:
    task = tiny_task(quick())
    outputs = outputs_of(task, tiny_model(task))
    assert outputs.frozen is outputs.frozen and outputs.novel is outputs.novel
    assert outputs.projections is outputs.projections and outputs.joint is outputs.joint
