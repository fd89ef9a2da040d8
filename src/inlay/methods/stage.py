"""Algorithm 1 of the paper: one discovery stage, from unlabelled images to a merged network."""

from collections.abc import Callable, Mapping

from torch import nn

from inlay.engine.loop import Loop
from inlay.engine.randomness import generator
from inlay.heads import grow, projector
from inlay.methods.classifier import settle_classifier
from inlay.methods.method import Method
from inlay.methods.model import StageModel, StageOutputs, Views
from inlay.methods.task import StageOutcome, StageTask
from inlay.methods.trunk import close_trunk, open_trunk

__all__ = ["adaptive_discovering_and_merging"]

LoopMaker = Callable[[Mapping[str, nn.Module]], Loop]

_PROBE_IMAGES = 64
_PROBE_PIXELS = 2**18


def adaptive_discovering_and_merging(task: StageTask, method: Method, make_loop: LoopMaker) -> StageOutcome:
    """Run Algorithm 1; the numbers on the right are its lines.

    Args:
        task: Base model, unlabelled images and gammas (buffers of the folded network).    # 1
        method: Loss terms and novel head.
        make_loop: Makes the training loop for the modules of the stage.

    Returns:
        The base model for the next stage, with its updated gammas as buffers.
    """
    example = task.prepare(task.images[:2])
    trunk = open_trunk(task.network, task.settings.branch, task.seed, example)  # 2: novel branch expansion
    model = _with_heads(task, method, trunk)
    views = Views(task)
    with make_loop(model.modules()) as loop:
        for batch in loop:  # 3: for all mini-batches of the unlabelled data
            outputs = StageOutputs(task, model, views(batch), batch)  # 4: output of the hybrid, Eq. 10
            losses = method.losses(outputs)  # 5: L = L^r + L^c
            loop.update(losses)  # 6: backward through the novel branches
    probe = task.prepare(task.images[: _probe_size(task)])
    network, report = close_trunk(trunk, probe)  # 8 fuse Conv+BN, 9 merge (Eq. 11), 10 update gamma (Eq. 12)
    head, statistics, assignments = settle_classifier(task, model, network)
    return StageOutcome(network, head, statistics, assignments, report)  # 11


def _with_heads(task: StageTask, method: Method, trunk: nn.Module) -> StageModel:
    settings, size = task.settings, task.head.in_features
    novel_head = method.novel_head(task).to(task.device) if settings.classifier.heads == "two" else None
    joint_head = grow(task.head, task.classes, generator(task.seed, "joint head")).requires_grad_(True)
    projection = projector(size, settings.contrastive.projection, generator(task.seed, "projector"))
    return StageModel(trunk, novel_head, joint_head, projection.to(task.device))


def _probe_size(task: StageTask) -> int:
    """Return how many images to compare: fewer of large ones, as they pass in float64 too."""
    return max(2, min(_PROBE_IMAGES, _PROBE_PIXELS // (task.images.shape[-1] * task.images.shape[-2])))
