"""Algorithm 1 of the paper: one discovery stage, from unlabelled images to a merged network."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from inlay.discovery.drift import drift_map
from inlay.discovery.refit import refit_linear
from inlay.discovery.statistics import ClassStatistics, class_statistics
from inlay.engine.loop import Loop
from inlay.engine.randomness import generator
from inlay.heads import grow, projector
from inlay.methods.method import Method
from inlay.methods.model import StageModel, StageOutputs, Views
from inlay.methods.task import StageOutcome, StageTask
from inlay.methods.trunk import close_trunk, open_trunk

__all__ = ["adaptive_discovering_and_merging"]

LoopMaker = Callable[[Mapping[str, nn.Module]], Loop]

_PROBE_IMAGES = 64


def adaptive_discovering_and_merging(task: StageTask, method: Method, make_loop: LoopMaker) -> StageOutcome:
    """Run Algorithm 1; the numbers on the right are its lines.

    Args:
        task: Base model, unlabelled images and gammas (buffers of the folded network).    # 1
        method: Loss terms and novel head.
        make_loop: Makes the training loop for the modules of the stage.

    Returns:
        The base model for the next stage, with its updated gammas as buffers.
    """
    trunk = open_trunk(task.network, task.settings.branch, task.seed)  # 2: novel branch expansion
    model = _with_heads(task, method, trunk)
    views = Views(task)
    with make_loop(model.modules()) as loop:
        for batch in loop:  # 3: for all mini-batches of the unlabelled data
            outputs = StageOutputs(task, model, views(batch), batch)  # 4: output of the hybrid, Eq. 10
            losses = method.losses(outputs)  # 5: L = L^r + L^c
            loop.update(losses)  # 6: backward through the novel branches
    probe = task.prepare(task.images[:_PROBE_IMAGES])
    network, report = close_trunk(trunk, probe)  # 8 fuse Conv+BN, 9 merge (Eq. 11), 10 update gamma (Eq. 12)
    head, statistics, assignments = _classifier(task, model, network)
    return StageOutcome(network, head, statistics, assignments, report)  # 11


def _with_heads(task: StageTask, method: Method, trunk: nn.Module) -> StageModel:
    settings, size = task.settings, task.head.in_features
    novel_head = method.novel_head(task).to(task.device) if settings.classifier.heads == "two" else None
    joint_head = grow(task.head, task.classes, generator(task.seed, "joint head")).requires_grad_(True)
    projection = projector(size, settings.contrastive.projection, generator(task.seed, "projector"))
    return StageModel(trunk, novel_head, joint_head, projection.to(task.device))


@torch.no_grad()
def _classifier(task: StageTask, model: StageModel, network: nn.Module) -> tuple[nn.Linear, ClassStatistics, Tensor]:
    """Assign the images to the new classes, describe all classes and settle the joint head."""
    settings = task.settings
    features = task.features(network)
    assignments = model.novel_logits(features, task.old_classes).argmax(dim=1)
    old = task.statistics
    if settings.classifier.drift:
        old = old.mapped(*drift_map(task.frozen_features, features, settings.classifier.ridge))
    kind = settings.replay.statistics
    new = class_statistics(features, assignments, task.classes, kind, allow_empty=True)
    head = model.joint_head.requires_grad_(False)
    if settings.classifier.refit:
        _refit(task, head, old, features, assignments)
    return head, old.joined(new), assignments


def _refit(task: StageTask, head: nn.Linear, old: ClassStatistics, features: Tensor, assignments: Tensor) -> None:
    """Fit the joint head anew on replayed features of old classes and real features of new ones."""
    settings = task.settings
    samples, labels = old.sample(
        settings.classifier.refit_per_class,
        generator(task.seed, "refit", device=task.device),
        settings.replay.scale,
    )
    with torch.enable_grad():
        weight, bias = refit_linear(
            torch.cat([samples, features]),
            torch.cat([labels, task.old_classes + assignments]),
            task.old_classes + task.classes,
            weight_decay=settings.classifier.refit_decay,
        )
    head.weight.copy_(weight)
    head.bias.copy_(bias)
