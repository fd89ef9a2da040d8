"""Choice of the images that stand for a class: herding, as in iCaRL."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["herd"]

_MOST_ROUNDS = 1000


@torch.no_grad()
def herd(features: Tensor, labels: Tensor, classes: int, count: int) -> list[Tensor]:
    """Rank images of each class so that the mean of the first few stays close to the mean of all.

    Herding as in iCaRL (Rebuffi et al., CVPR 2017) and its published code. With f the L2-normalised features of a
    class and μ their mean, a vector w starts at μ; every round takes the image of largest w·f, then adds μ - f of
    that image to w. An image that is taken again changes w but is not ranked twice. After 1000 rounds the images
    not yet ranked follow in the order given. Of equal images the first wins. All classes are ranked together.

    Args:
        features: Features of the images under the test-time transform, [N, D].
        labels: Class of each image, int64 [N], in 0..classes - 1.
        classes: Number K of classes.
        count: Images to rank per class; a class that has fewer gives all.

    Returns:
        Indices of the images of each class, int64, the best first. Asking for fewer gives a prefix.

    Raises:
        ValueError: If the shapes do not fit, a label is out of range or the count is negative.
    """
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(f"features must be [N, D] and labels [N]; got {tuple(features.shape)}, {tuple(labels.shape)}")
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(f"labels must lie in 0..{classes - 1}")
    if count < 0:
        raise ValueError(f"count must be 0 or more; got {count}")
    sizes = torch.bincount(labels, minlength=classes)
    by_class = labels.argsort(stable=True)
    if not count or not len(labels):
        return [by_class.new_empty(0) for _ in range(classes)]
    places = torch.arange(int(sizes.max()), device=labels.device)
    real = places < sizes[:, None]
    # Double precision, so that rounding does not decide between images.
    padded = features.new_zeros(*real.shape, features.shape[1], dtype=torch.float64)
    padded[real] = F.normalize(features.double(), dim=1)[by_class]
    ranking = _ranking(padded, real, count)
    starts = sizes.cumsum(dim=0) - sizes
    wanted = sizes.clamp_max(count).tolist()
    return [by_class[start + row[:most]] for start, row, most in zip(starts, ranking, wanted, strict=True)]


def _ranking(features: Tensor, real: Tensor, count: int) -> Tensor:
    """Rank the rows of each class, [K, M], for unit features [K, M, D] of which some are real, bool [K, M]."""
    every = torch.arange(len(real), device=real.device)
    wanted = real.sum(dim=1).clamp_max(count)
    mean = features.sum(dim=1) / real.sum(dim=1, keepdim=True).clamp_min(1)
    sought = mean.clone()
    # The round in which a row was first taken. Later ones than any round stand for never, padding last of all.
    taken_in = torch.where(real, _MOST_ROUNDS, _MOST_ROUNDS + 1)
    for number in range(_MOST_ROUNDS):
        if bool(((taken_in < _MOST_ROUNDS).sum(dim=1) >= wanted).all()):
            break
        # Unlike a matrix product, this treats all rows alike, so that equal images have equal scores.
        scores = torch.linalg.vecdot(features, sought[:, None]).masked_fill(~real, -torch.inf)
        best = scores.argmax(dim=1)
        taken_in[every, best] = taken_in[every, best].clamp_max(number)
        sought += mean - features[every, best]
    return taken_in.argsort(dim=1, stable=True)
