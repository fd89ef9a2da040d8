"""AANets (Liu, Schiele and Sun, CVPR 2021) on iCaRL and PODNet: each group of a network as a stable and a plastic one.

The pairs are made after the base stage and are never merged: stable kernels stay those of the base stage, everything
else of a pair goes on from stage to stage. On iCaRL the shares are trained at the published rate of 1e-8, at which they
hardly move; so few large batches will do, of equally many images of each new class, at a rate that does not decay. On
PODNet they stay at one half, as in the released code, whose network, memory and training are those of PODNet. That code
starts the scale of the head anew with the pairs; here it goes on. Of a memory that all classes share, each has a whole
part, where the released code rounds up; and exemplars are mirrored for nearest means, where it swaps their colours.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from inlay.engine.randomness import generator
from inlay.engine.work import Work
from inlay.heads import linear
from inlay.increments.balance import balanced_subset
from inlay.increments.classifier import Classifier
from inlay.increments.increment import Increment, Learned, System, Train
from inlay.increments.mixing import MixingWork
from inlay.increments.nearest_mean import class_means
from inlay.increments.paired_network import freeze_stable, paired
from inlay.increments.proxy_head import ScaledCosineHead
from inlay.increments.recipe import MemorySettings
from inlay.increments.single import SingleNetwork
from inlay.increments.systems import icarl, podnet
from inlay.increments.work import IncrementWork
from inlay.settings import TrainingSettings

__all__ = ["ICARL", "PODNET", "PairedNetwork", "balanced_for_mixing"]

_NEW_IMAGES_PER_CLASS = 20
_MIXING = TrainingSettings(batch=2048, learning_rate=1e-8, nesterov=False)


@dataclass(frozen=True)
class PairedNetwork:
    """Learns a stage as another system does, later ones with a network of pairs.

    Attributes:
        host: Learns a stage; it trains the network of the stage before as a whole.
        mixing: How the shares of the pairs are trained; None leaves them at one half.
    """

    host: Callable[[Increment, Train], Learned]
    mixing: TrainingSettings | None = None

    def __call__(self, task: Increment, train: Train) -> Learned:
        """Learn a stage.

        Raises:
            InlayError: If the groups of the network cannot be doubled.
        """
        if task.before is None:
            return self.host(task, train)

        def train_and_mix(name: str, images: Increment, work: Work, settings: TrainingSettings) -> None:
            assert isinstance(work, IncrementWork)
            network = work.classifier.network
            freeze_stable(network)
            # Where the head alone is tuned, the shares stay too.
            if self.mixing is None or not any(parameter.requires_grad for parameter in network.parameters()):
                train(name, images, work, settings)
            else:
                train(name, images, MixingWork(work, balanced_for_mixing(task), self.mixing), settings)

        before = Classifier(paired(task.before.network), task.before.head).frozen()
        return self.host(replace(task, before=before), train_and_mix)


def balanced_for_mixing(task: Increment) -> Increment:
    """Return a stage with all that is kept of old classes and 20 images of each new one, drawn at random."""
    new = torch.nonzero(task.labels >= task.old_classes).flatten()
    old = torch.nonzero(task.labels < task.old_classes).flatten()
    drawn = balanced_subset(task.labels[new], generator(task.seed, "mixing"), _NEW_IMAGES_PER_CLASS)
    return task.of_rows(torch.cat([old, new[drawn]]))


def _cosine_head(task: Increment) -> ScaledCosineHead:
    if task.before is None:
        return ScaledCosineHead(linear(task.feature_size, task.classes, generator(task.seed, "head")).weight)
    head = task.start.head
    assert isinstance(head, ScaledCosineHead)
    new = task.of_new_classes()
    means = class_means(new.features(task.start.network), new.labels - task.old_classes, task.new_classes)
    return head.grown(means * head.mean_length())


ICARL = System(
    name="icarl+aanets",
    summary="iCaRL as cross-entropy and distillation, on a cosine head and a network of pairs",
    recipe=replace(icarl.FAIR.recipe, backbone="resnet32-lucir", memory=MemorySettings(per_class=0, total=2000)),
    learn=PairedNetwork(SingleNetwork(_cosine_head, icarl.distilled), _MIXING),
    base="cross-entropy of cosines",
    takes_branches=False,
)
PODNET = replace(
    podnet.PUBLISHED,
    name="podnet+aanets",
    summary="PODNet on a network of pairs",
    learn=PairedNetwork(podnet.PUBLISHED.learn),
    takes_branches=False,
)
