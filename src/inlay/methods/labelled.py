"""New classes that come with labels: cross-entropy over all classes, old ones replayed from what is stored of them."""

from torch import Tensor
from torch.nn import functional

from inlay.methods import terms
from inlay.methods.method import Method
from inlay.methods.model import StageOutputs
from inlay.methods.task import StageTask
from inlay.methods.term import Term

__all__ = ["METHOD"]


def _cross_entropy(outputs: StageOutputs) -> Tensor:
    """Teach the joint head the given classes: the mean over both views of each image."""
    task = outputs.task
    assert task.labels is not None
    labels = task.labels[outputs.batch.indices]
    # Given labels are sound, so unlike those that a stage makes up they may always teach the network.
    losses = [
        functional.cross_entropy(outputs.model.joint_logits(view), labels) for view in (outputs.first, outputs.second)
    ]
    return (losses[0] + losses[1]) / 2


def _no_novel_head(task: StageTask) -> None:
    return None


METHOD = Method(
    name="labelled",
    summary="cross-entropy on labelled images of new classes, distillation, replay, refitted head",
    terms=(
        Term("cross-entropy", lambda settings, progress: 1.0, _cross_entropy),
        terms.DISTILLATION,
        terms.CONTRASTIVE,
        terms.REPLAY,
    ),
    novel_head=_no_novel_head,
)
