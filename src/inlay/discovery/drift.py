"""Estimate of how features moved while the network learned."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Drift", "drift_between", "drift_map", "drift_residual"]


@dataclass(frozen=True, eq=False)
class Drift:
    """How features moved: x became A·x + b and something that x does not tell.

    Attributes:
        matrix: A, [D', D].
        offset: b, [D'].
        residual: Covariance of the rest, [D', D'], float64.
    """

    matrix: Tensor
    offset: Tensor
    residual: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Move features [N, D] to where they are expected after training, [N, D']."""
        return (features.double() @ self.matrix.double().T + self.offset.double()).to(features.dtype)


def drift_between(before: Tensor, after: Tensor, ridge: float = 1e-2) -> Drift:
    """Measure how features moved, from those of some images before training, [N, D], and after it, [N, D'].

    Raises:
        ValueError: As for `drift_map`.
    """
    matrix, offset = drift_map(before, after, ridge)
    return Drift(matrix, offset, drift_residual(before, after, matrix, offset))


@torch.no_grad()
def drift_map(before: Tensor, after: Tensor, ridge: float = 1e-2) -> tuple[Tensor, Tensor]:
    """Fit an affine map from features before training to features after it, by ridge regression.

    With equal dimensions the change (after - before) is regressed, so that a growing ridge tends to the
    identity plus the mean shift; otherwise `after` itself is, and a growing ridge tends to its mean.

    Args:
        before: Features of some images before training, [N, D].
        after: Features of the same images after it, [N, D'].
        ridge: Strength relative to the mean eigenvalue of the covariance of `before`, above 0.

    Returns:
        The matrix A, [D', D], and the offset b, [D'], of the map A·x + b.

    Raises:
        ValueError: If the images do not pair up, there are none, or the ridge is not above 0.
    """
    if before.ndim != 2 or after.ndim != 2 or len(before) != len(after) or len(before) == 0:
        raise ValueError(f"features must be [N, D] and [N, D'], N > 0; got {tuple(before.shape)}, {tuple(after.shape)}")
    if ridge <= 0:
        raise ValueError(f"ridge must be above 0; got {ridge}")
    precision = torch.promote_types(before.dtype, torch.float32)
    old, new = before.double(), after.double()
    identity = torch.eye(old.shape[1], dtype=old.dtype, device=old.device)
    same_size = old.shape[1] == new.shape[1]
    centred = old - old.mean(dim=0)
    target = new - old if same_size else new
    covariance = centred.T @ centred / len(old)
    # The floor keeps the system solvable where `before` does not vary at all; its solution is then 0.
    strength = (ridge * covariance.diagonal().mean()).clamp_min(torch.finfo(old.dtype).tiny)
    cross = centred.T @ (target - target.mean(dim=0)) / len(old)
    matrix = torch.linalg.solve(covariance + strength * identity, cross).T
    if same_size:
        matrix = matrix + identity
    offset = new.mean(dim=0) - matrix @ old.mean(dim=0)
    return matrix.to(precision), offset.to(precision)


@torch.no_grad()
def drift_residual(before: Tensor, after: Tensor, matrix: Tensor, offset: Tensor) -> Tensor:
    """Return the covariance of what a drift map leaves unexplained, [D', D'], float64.

    Features moved by the map alone would look more certain than they are; this is the spread to add to them.

    Args:
        before: Features of some images before training, [N, D].
        after: Features of the same images after it, [N, D'].
        matrix: A of the map, [D', D].
        offset: b of the map, [D'].
    """
    residual = after.double() - (before.double() @ matrix.double().T + offset.double())
    return residual.T @ residual / len(residual)
