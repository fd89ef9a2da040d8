"""Classification by the nearest class mean of exemplars (NME)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["NearestMean", "class_means"]


@torch.no_grad()
def class_means(features: Tensor, labels: Tensor, classes: int, flipped: Tensor | None = None) -> Tensor:
    """Average the directions of the exemplars of each class.

    The class mean of iCaRL: features are L2-normalised, averaged and normalised again. Means over mirrored copies,
    if given, count as much as those over the images.

    Args:
        features: Features of the exemplars, [N, D].
        labels: Their classes, int64 [N], in 0..classes - 1.
        classes: Number K of classes.
        flipped: Features of the horizontally mirrored exemplars, in the same order, [N, D].

    Returns:
        Means of length 1, [K, D], in at least float32; a class without exemplars has the mean 0.

    Raises:
        ValueError: If the shapes do not fit or a label is out of range.
    """
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(f"features must be [N, D] and labels [N]; got {tuple(features.shape)}, {tuple(labels.shape)}")
    if flipped is not None and flipped.shape != features.shape:
        raise ValueError(f"flipped must be {tuple(features.shape)} as the features; got {tuple(flipped.shape)}")
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(f"labels must lie in 0..{classes - 1}")
    precision = torch.promote_types(features.dtype, torch.float32)
    # Both means are over the same number of images, so that their average has the direction of the sum of all.
    directions = F.normalize(features.double(), dim=1)
    if flipped is not None:
        directions += F.normalize(flipped.double(), dim=1)
    sums = directions.new_zeros(classes, features.shape[1]).index_add_(0, labels, directions)
    return F.normalize(sums, dim=1).to(precision)


class NearestMean(nn.Module):
    """Scores features by their distance to the mean of each class, after L2 normalisation.

    Args:
        means: Class means of length 1, or 0 for a class that is never predicted, [K, D].

    Attributes:
        means: The class means, a buffer.

    Raises:
        ValueError: If the means are not a matrix.
    """

    means: Tensor

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        if means.ndim != 2:
            raise ValueError(f"means must be [K, D]; got {tuple(means.shape)}")
        self.register_buffer("means", means.detach().clone())

    def forward(self, features: Tensor) -> Tensor:
        """Return negative squared distances, [B, K], for features [B, D]; -inf for classes without a mean."""
        precision = torch.promote_types(torch.promote_types(features.dtype, self.means.dtype), torch.float32)
        means = self.means.to(precision)
        # Not by matrix products, which are rounded where they are fast.
        distances = torch.cdist(
            F.normalize(features.to(precision), dim=1), means, compute_mode="donot_use_mm_for_euclid_dist"
        )
        return (-distances.square()).masked_fill(~means.any(dim=1), -torch.inf)
