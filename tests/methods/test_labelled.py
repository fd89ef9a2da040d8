from dataclasses import replace

import pytest
import torch

import slow_losses
from inlay.engine.loop import Companions, Loop
from inlay.engine.randomness import generator
from inlay.engine.work import Work
from inlay.heads import grow, projector
from inlay.methods import METHODS, StageOutcome, adaptive_discovering_and_merging
from inlay.methods.labelled import METHOD
from inlay.methods.model import StageModel
from inlay.methods.task import StageTask
from inlay.methods.trunk import open_trunk
from inlay.settings import Settings
from tiny_stage import OLD_CLASSES, SEED, outputs_of, quick, settle, tiny_task


def labelled_task(settings: Settings, count: int = 24) -> StageTask:
    """The stage of two digits, with their labels."""
    return replace(tiny_task(settings, count=count), labels=OLD_CLASSES + torch.arange(2).repeat_interleave(count))


def labelled_model(task: StageTask) -> StageModel:
    trunk = settle(open_trunk(task.network, task.settings.branch, task.seed, task.first_inputs(2))).train()
    joint = grow(task.head, task.classes, generator(SEED, "joint head")).requires_grad_(True)
    return StageModel(trunk, None, joint, projector(task.head.in_features, 8, generator(SEED, "projector")))


def run(task: StageTask) -> tuple[StageOutcome, list[Companions | None], Work]:
    seen: list[Companions | None] = []
    works: list[Work] = []

    def make_loop(work: Work, companions: Companions | None) -> Loop:
        seen.append(companions)
        works.append(work)
        return Loop("a stage", work, task.settings.training, task.feed, SEED, companions)

    return adaptive_discovering_and_merging(task, METHOD, make_loop), seen, works[0]


def test_cross_entropy_is_that_of_both_views_over_all_classes() -> None:
    task = labelled_task(quick())
    model = labelled_model(task)
    outputs = outputs_of(task, model)
    assert model.joint_head is not None and task.labels is not None
    truth = task.labels[outputs.batch.indices].tolist()
    assert min(truth) >= OLD_CLASSES
    expected = [slow_losses.cross_entropy(model.joint_head(view), truth) for view in (outputs.first, outputs.second)]
    assert METHOD.losses(outputs)["cross-entropy"].item() == pytest.approx(sum(expected) / 2, rel=1e-4)
    assert expected[0] != pytest.approx(expected[1], rel=1e-4)


@pytest.mark.parametrize("preset", ["inlay", "paper"])
def test_given_labels_always_teach_the_branches(preset: str) -> None:
    task = labelled_task(quick(preset))
    model = labelled_model(task)
    METHOD.losses(outputs_of(task, model))["cross-entropy"].backward()  # type: ignore[no-untyped-call]
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.trunk.parameters())


def test_only_its_own_weights_of_a_preset_count() -> None:
    used = {name: set(METHOD.weights(quick(name), 1.0)) for name in ("inlay", "paper")}
    assert used["inlay"] == {"cross-entropy", "distillation"}
    assert used["paper"] == {"cross-entropy", "distillation", "contrastive", "replay"}


def test_it_is_not_offered_for_unlabelled_images() -> None:
    assert METHOD.name not in METHODS


def test_a_stage_keeps_the_given_classes_and_pairs_no_image_with_a_neighbour() -> None:
    task = labelled_task(quick(changes={"assignment.partner_share": 0.5, "assignment.balanced": True}))
    outcome, companions, work = run(task)
    assert task.labels is not None and torch.equal(outcome.assignments, task.labels - OLD_CLASSES)
    assert companions == [None]
    assert outcome.novel_head is None and "novel_head" not in dict(work.named_children())
    assert outcome.statistics.counts.tolist() == [20, 20, 20, 24, 24]
    assert outcome.merge is not None and outcome.merge.parameters_after == outcome.merge.parameters_before


@pytest.mark.parametrize("gate", ["imm", "constant", "aff", "full", "frozen"])
def test_any_gate_will_do(gate: str) -> None:
    outcome, _, _ = run(labelled_task(quick(changes={"branch.gate": gate, "training.epochs": 1}), count=5))
    assert outcome.head.out_features == OLD_CLASSES + 2
    features = outcome.statistics.mean
    assert bool(torch.isfinite(features).all()) and outcome.statistics.counts.tolist()[OLD_CLASSES:] == [5, 5]


def test_a_batch_is_learned_by_heart() -> None:
    task = labelled_task(quick(changes={"training.epochs": 8, "classifier.refit_per_class": 300}))
    outcome, _, _ = run(task)
    predicted = outcome.head(task.features(outcome.network)).argmax(dim=1)
    assert task.labels is not None
    assert (predicted == task.labels).float().mean() > 0.9


def test_images_of_old_classes_are_learned_but_are_no_part_of_the_new_ones() -> None:
    task = labelled_task(quick())
    assert task.labels is not None
    kept = torch.tensor([0, 2, 1, 0])
    task = replace(task, labels=torch.cat([task.labels[:-4], kept]))
    outputs = outputs_of(task, labelled_model(task))
    assert task.labels is not None and bool((task.labels[outputs.batch.indices] < OLD_CLASSES).any())
    outcome, _, _ = run(task)
    assert outcome.assignments.tolist() == [0] * 24 + [1] * 20
    assert outcome.statistics.counts.tolist() == [20, 20, 20, 24, 20]
