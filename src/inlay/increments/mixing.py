"""Training of a network of pairs: the mixing shares move between the epochs, everything else moves within them."""

from collections.abc import Mapping, Sequence
from contextlib import closing

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.engine.batch import Batch
from inlay.engine.randomness import derive_seed
from inlay.engine.work import Work
from inlay.increments.aggregation import mixing_shares
from inlay.increments.increment import Increment
from inlay.increments.outputs import Outputs
from inlay.increments.work import IncrementWork
from inlay.settings import TrainingSettings

__all__ = ["MixingWork"]


class MixingWork(Work):
    """Work on a network of pairs, after each epoch of which the shares are trained by a pass over a balanced set.

    The two levels of AANets (CVPR 2021): the shares follow the cross-entropy by SGD with momentum, all else being
    fixed and in eval mode. The pass after the last epoch is left out.

    Args:
        work: What is trained within the epochs; its network has pairs, whose shares have no gradients.
        balanced: The stage with the images of the pass.
        settings: Batch, rate, momentum and weight decay of the pass.
    """

    def __init__(self, work: IncrementWork, balanced: Increment, settings: TrainingSettings) -> None:
        super().__init__()
        self.work = work
        self._balanced, self._settings = balanced, settings
        shares = mixing_shares(work.classifier)
        # Parameters of a child and not buffers of its own, as a checkpoint holds the children of some work.
        self.velocities = nn.ParameterList(nn.Parameter(torch.zeros_like(share), False) for share in shares)

    def weights(self, progress: float) -> Mapping[str, float]:
        """Return the weights of the losses within the epochs."""
        return self.work.weights(progress)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of a batch within an epoch."""
        losses: dict[str, Tensor] = self.work(batch)
        return losses

    def begin_epoch(self, epoch: int) -> None:
        """Train the shares, unless nothing else was trained before."""
        self.work.begin_epoch(epoch)
        if epoch == 0:
            return
        shares = mixing_shares(self.work.classifier)
        self.eval()
        for share in shares:
            share.requires_grad_(True)
        for batch in self._batches(epoch):
            outputs = Outputs(self._balanced, self.work.classifier, batch)
            loss = F.cross_entropy(outputs.scores, outputs.labels)
            self._descend(shares, torch.autograd.grad(loss, shares))
        for share in shares:
            share.requires_grad_(False)
        self.train()

    def _batches(self, epoch: int) -> list[Batch]:
        feed, device = self._balanced.feed, self._balanced.device
        key = torch.tensor(derive_seed(self._balanced.seed, "mixing", epoch), device=device)
        rows = torch.split(torch.arange(len(feed)), self._settings.batch)
        with closing(feed.batches(rows)) as images:
            placed = [(pixels, places.to(device)) for pixels, places in zip(images, rows, strict=True)]
        return [Batch(pixels, pixels, places, places, key) for pixels, places in placed]

    @torch.no_grad()
    def _descend(self, shares: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        settings = self._settings
        for share, velocity, gradient in zip(shares, self.velocities, gradients, strict=True):
            velocity.mul_(settings.momentum).add_(gradient + settings.weight_decay * share)
            share.sub_(settings.learning_rate * velocity)
