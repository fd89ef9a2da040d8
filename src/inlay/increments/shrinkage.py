"""Spread of a class that has few images: its own, and what is known of other classes."""

import torch

from inlay.discovery.statistics import ClassStatistics

__all__ = ["shrunk"]


@torch.no_grad()
def shrunk(new: ClassStatistics, known: ClassStatistics, strength: float) -> ClassStatistics:
    """Move the spread of new classes towards the mean spread of known ones, the more the fewer images they have.

    With n images of covariance S, and the mean T of the covariances of the known classes, a class has
    ((n - 1)·S + ν·T) / (n - 1 + ν) in place of S: as if ν further images had been seen, spread like those of other
    classes. The covariance of five images has rank four at most, which no class truly has. Of "diagonal" statistics
    the variances move alike; what is "shared" or "pooled" comes from all classes already and stays.

    Args:
        new: Statistics of the new classes.
        known: Statistics of known classes, of the same kind and in the same feature space.
        strength: ν, 0 or more.

    Returns:
        Statistics of the new classes; empty ones stay empty.

    Raises:
        ValueError: If the kinds or the sizes of the features differ.
    """
    if new.kind != known.kind or new.mean.shape[1] != known.mean.shape[1]:
        raise ValueError(
            f"statistics must agree; got {new.kind} in {new.mean.shape[1]} dimensions and {known.kind} in "
            f"{known.mean.shape[1]}"
        )
    present = torch.nonzero(known.counts > 0).flatten().tolist()
    if new.kind == "shared" or not present:
        return new
    typical = known.covariance(present[0])
    for index in present[1:]:
        typical = typical + known.covariance(index)
    typical = typical / len(present)
    std, correlation = new.std.clone(), None if new.correlation is None else new.correlation.clone()
    for index in torch.nonzero(new.counts > 0).flatten().tolist():
        own = int(new.counts[index]) - 1
        mixed = (own * new.covariance(index) + strength * typical) / (own + strength)
        deviation = mixed.diagonal().sqrt()
        std[index] = deviation.float()
        if correlation is not None and new.kind == "full":
            correlation[index] = (mixed / (deviation[:, None] * deviation)).half()
    return ClassStatistics(new.mean, new.counts, std, correlation)
