"""What a stage of new classes is given and what it gives back."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from inlay.branches import MergeReport
from inlay.data.normalisation import Normalisation
from inlay.discovery.drift import Drift
from inlay.discovery.statistics import ClassStatistics
from inlay.engine.feed import Feed
from inlay.engine.inference import features_of, first_images
from inlay.heads import ConcatenatedHead, NovelHead
from inlay.settings import Settings

__all__ = ["StageOutcome", "StageTask"]


@dataclass(frozen=True, eq=False)
class StageTask:
    """The inputs of one stage of new classes.

    Attributes:
        network: Network of the stage before, frozen, from images to features [B, D]: the teacher, and where training
            starts. It is folded, unless the stage trains the network itself (`branch.gate` full or twin).
        head: Joint head over the O classes known so far.
        statistics: Statistics of the features of these classes.
        feed: Brings the N images to the device of the network.
        classes: Number of new classes, K.
        normalise: Turns images in 0..1 into the input of the network.
        settings: All settings of the run.
        seed: Seed of this stage.
        labels: Class of each image among all O + K, int64 [N], on the same device; None if the classes are to be found.
            Images of old classes, if some were kept, come after those of new ones.
        known_features: Features of all images by the frozen network, if somebody has computed them already, [N, D].
    """

    network: nn.Module
    head: nn.Linear
    statistics: ClassStatistics
    feed: Feed
    classes: int
    normalise: Normalisation
    settings: Settings
    seed: int
    labels: Tensor | None = None
    known_features: Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Where the stage is computed."""
        return self.feed.device

    @property
    def old_classes(self) -> int:
        """Number of classes known before the stage, O."""
        return self.head.out_features

    @cached_property
    def frozen_features(self) -> Tensor:
        """Features of all images by the frozen network, without augmentation, [N, D]."""
        return self.features(self.network) if self.known_features is None else self.known_features

    def prepare(self, images: Tensor) -> Tensor:
        """Turn uint8 images into the input of the network, without augmentation."""
        return self.normalise(images.to(self.head.weight.dtype) / 255)

    def first_inputs(self, count: int) -> Tensor:
        """Return the first images as inputs of the network, without augmentation, at most `count`."""
        return self.prepare(first_images(self.feed, count))

    def features(self, network: nn.Module) -> Tensor:
        """Return the features of all images by a network, without augmentation, [N, D]."""
        return features_of(network, self.feed, self.prepare)


@dataclass(frozen=True, eq=False)
class StageOutcome:
    """The outputs of one stage of new classes.

    Attributes:
        network: The network for the next stage.
        head: Head over O + K classes: the joint head, or old and novel head side by side.
        statistics: Statistics of all O + K classes.
        assignments: New class of each image of new classes, given or found, 0..K-1, [N].
        features: Features of these images by the network, without augmentation, [N, D].
        drift: How the features of images moved in the stage; None where they did not, or there is no joint head.
        merge: How exactly the branches were merged; None if there was nothing to merge.
        novel_head: The trained head over the new classes alone; None if the joint head played its part.
    """

    network: nn.Module
    head: nn.Linear | ConcatenatedHead
    statistics: ClassStatistics
    assignments: Tensor
    features: Tensor
    drift: Drift | None
    merge: MergeReport | None
    novel_head: NovelHead | None = None
