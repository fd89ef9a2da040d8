"""Algorithm 1 of the paper: one stage of new classes, from images to a merged network."""

from collections.abc import Callable

from torch import Tensor, nn

from inlay.engine.batch import Batch
from inlay.engine.loop import Companions, Loop
from inlay.engine.randomness import generator
from inlay.engine.work import Work
from inlay.heads import grow, projector
from inlay.methods.classifier import settle_classifier, settle_heads_side_by_side
from inlay.methods.method import Method
from inlay.methods.model import StageModel, StageOutputs, neighbours_as_companions
from inlay.methods.task import StageOutcome, StageTask
from inlay.methods.trunk import close_trunk, open_trunk

__all__ = ["DiscoveryWork", "adaptive_discovering_and_merging"]

LoopMaker = Callable[[Work, Companions | None], Loop]

_PROBE_IMAGES = 64
_PROBE_PIXELS = 2**18


class DiscoveryWork(Work):
    """The model of a discovery stage under the losses of a method.

    Args:
        task: The stage.
        method: Loss terms.
        model: The parts that learn.
    """

    def __init__(self, task: StageTask, method: Method, model: StageModel) -> None:
        super().__init__()
        self._task, self._method, self._model = task, method, model
        for name, part in model.parts().items():
            self.add_module(name, part)
        if task.settings.replay.weight:
            # A step that is compiled or recorded cannot do this.
            task.statistics.prepare_sampling()

    def weights(self, progress: float) -> dict[str, float]:
        """Return the weights of the terms in use."""
        return self._method.weights(self._task.settings, progress)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of L = L^r + L^c."""
        return self._method.losses(StageOutputs(self._task, self._model, batch))

    def begin_epoch(self, epoch: int) -> None:
        """Do what the method has to do before an epoch."""
        self._method.begin_epoch(self._task, self._model, epoch)


def adaptive_discovering_and_merging(task: StageTask, method: Method, make_loop: LoopMaker) -> StageOutcome:
    """Run Algorithm 1; the numbers on the right are its lines.

    Args:
        task: Base model, images of new classes and gammas (buffers of the folded network).    # 1
        method: Loss terms and novel head.
        make_loop: Makes the training loop for the work of the stage.

    Returns:
        The base model for the next stage, with its updated gammas as buffers.
    """
    example = task.first_inputs(2)
    trunk = open_trunk(task.network, task.settings.branch, task.seed, example)  # 2: novel branch expansion
    model = _with_heads(task, method, trunk)
    if method.terms:
        work = DiscoveryWork(task, method, model)  # 4: output of the hybrid, Eq. 10; 5: L = L^r + L^c
        # A neighbour may be of another class, which matters where classes are given.
        companions = neighbours_as_companions(task) if task.labels is None else None
        make_loop(work, companions).run()  # 3: all mini-batches; 6: backward through the branches
    network, report = close_trunk(trunk, task.first_inputs(_probe_size(task)))  # 8 fuse, 9 merge (Eq. 11), 10 (Eq. 12)
    settle = settle_classifier if method.joint else settle_heads_side_by_side
    return StageOutcome(network, *settle(task, model, network), report, model.novel_head)  # 11


def _with_heads(task: StageTask, method: Method, trunk: nn.Module) -> StageModel:
    settings, size, like = task.settings, task.head.in_features, task.head.weight
    made = method.novel_head(task) if settings.classifier.heads == "two" else None
    novel_head = None if made is None else made.to(like)
    joint_head = None
    if method.joint:
        present = task.statistics.counts > 0
        joint_head = grow(task.head, task.classes, generator(task.seed, "joint head"), present).requires_grad_(True)
    projection = projector(size, settings.contrastive.projection, generator(task.seed, "projector")).to(like)
    others = {name: part.to(like) for name, part in method.parts(task).items()}
    return StageModel(trunk, novel_head, joint_head, projection, others)


def _probe_size(task: StageTask) -> int:
    """Return how many images to compare: fewer of large ones, as they pass in float64 too."""
    _, height, width = task.feed.shape
    return max(2, min(_PROBE_IMAGES, _PROBE_PIXELS // (height * width)))
