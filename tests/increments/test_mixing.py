import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from inlay.engine.checkpoint import training_state
from inlay.increments.aggregation import mixing_shares
from inlay.increments.classifier import Classifier
from inlay.increments.increment import Increment
from inlay.increments.mixing import MixingWork
from inlay.increments.outputs import Outputs
from inlay.increments.paired_network import freeze_stable, paired
from inlay.increments.systems import podnet
from inlay.increments.work import IncrementWork
from inlay.pipeline import Workshop
from inlay.settings import TrainingSettings
from proxy_stages import OLD, batch_of, exact_stage

MIXING = TrainingSettings(batch=8, learning_rate=0.05, momentum=0.9, nesterov=False, weight_decay=0.01)


def _cross_entropy(outputs: Outputs) -> Tensor:
    return functional.cross_entropy(outputs.scores, outputs.labels)


def _stage() -> Increment:
    """A stage of old classes alone, as the head knows no others."""
    stage = exact_stage(podnet.PUBLISHED, kept=9)
    return stage.of_rows(torch.nonzero(stage.labels < OLD).flatten())


def _work(stage: Increment) -> MixingWork:
    assert stage.before is not None
    classifier = Classifier(copy.deepcopy(paired(stage.before.network)), copy.deepcopy(stage.before.head))
    # Otherwise both halves of a pair are the same, and its share has no gradient.
    randomness = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for name, parameter in classifier.named_parameters():
            if ".plastic." in name:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=randomness, dtype=parameter.dtype))
    freeze_stable(classifier.requires_grad_(True))
    return MixingWork(IncrementWork(stage, classifier, {"entropy": (1.0, _cross_entropy)}), stage, MIXING)


def _shares(work: MixingWork) -> list[float]:
    return [share.item() for share in mixing_shares(work)]


def test_passes_are_those_of_sgd_with_momentum_on_the_shares_alone() -> None:
    stage = _stage()
    work = _work(stage).train()
    plain = copy.deepcopy(work.work.classifier).eval().requires_grad_(False)
    shares = [share.requires_grad_(True) for share in mixing_shares(plain)]
    optimizer = torch.optim.SGD(shares, lr=0.05, momentum=0.9, weight_decay=0.01)
    state = {name: tensor.clone() for name, tensor in work.state_dict().items()}
    for epoch in range(3):
        work.begin_epoch(epoch)
        for rows in torch.split(torch.arange(27), 8) if epoch else ():
            optimizer.zero_grad()
            scores = plain(stage.form.prepare(stage.pixels[rows]))
            loss = functional.cross_entropy(scores, stage.labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert _shares(work) == pytest.approx([share.item() for share in shares], abs=1e-12)
        assert (_shares(work) == [0.5] * 3) == (epoch == 0)
    others = [name for name in state if not name.endswith(".share") and not name.startswith("velocities")]
    assert all(torch.equal(state[name], work.state_dict()[name]) for name in others)
    assert work.training and work.work.classifier.network.training
    assert not any(share.requires_grad for share in mixing_shares(work))


def test_within_an_epoch_the_work_is_that_of_the_host() -> None:
    stage = _stage()
    work = _work(stage).eval()
    batch = batch_of(stage)
    assert torch.equal(work(batch)["entropy"], work.work(batch)["entropy"]) and work.weights(0.3) == {"entropy": 1.0}


@pytest.mark.parametrize("epochs", [1, 2])
def test_shares_move_between_epochs_only(epochs: int) -> None:
    stage = _stage()
    work = _work(stage)
    before = copy.deepcopy(work.work.classifier.network.state_dict())
    settings = TrainingSettings(epochs=epochs, batch=9, pace="eager")
    Workshop().loop_maker("", settings, stage.feed, 3, "")(work, None).run()
    after = work.work.classifier.network.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"layer1.plastic.conv.weight", "layer1.stable.conv.scale", "layer1.stable.norm.weight"} <= moved
    assert "layer1.stable.conv.conv.weight" not in moved
    assert (_shares(work) == [0.5] * 3) == (epochs == 1)


def test_a_checkpoint_holds_the_momentum() -> None:
    work = _work(_stage())
    work.begin_epoch(1)
    tensors, _ = training_state(dict(work.named_children()), torch.optim.SGD(work.velocities))
    kept = [tensor for name, tensor in tensors.items() if "velocities" in name]
    assert len(kept) == 3 and all(tensor.item() != 0 for tensor in kept)


def test_views_of_a_pass_differ_from_epoch_to_epoch() -> None:
    stage = _stage()
    stage = replace(stage, recipe=stage.recipe.changed({"view": "glyph"}))
    first, again, second = _work(stage), _work(stage), _work(stage)
    first.begin_epoch(1)
    again.begin_epoch(1)
    second.begin_epoch(2)
    assert _shares(first) == _shares(again) != _shares(second)
