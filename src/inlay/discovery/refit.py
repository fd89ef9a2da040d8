"""Convex refit of a linear classifier on given features."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["refit_linear"]


def refit_linear(
    features: Tensor,
    labels: Tensor,
    classes: int,
    weight_decay: float = 1e-4,
    iterations: int = 200,
) -> tuple[Tensor, Tensor]:
    """Fit multinomial logistic regression by L-BFGS, deterministically.

    Minimises the mean cross-entropy, in which every class present counts the same, plus weight_decay / 2 times
    the squared norm of the weights (not of the biases). Features are standardised for the fit, which is where the
    penalty applies; the scale is folded back into the result. A class without samples gets a zero row and a bias 1
    below the lowest of the others.

    Args:
        features: Features, [N, D].
        labels: Their classes, [N], in 0..classes-1.
        classes: Rows of the result.
        weight_decay: Strength of the penalty, above 0 to make the optimum unique.
        iterations: Most L-BFGS iterations.

    Returns:
        The weight, [classes, D], and the bias, [classes], for the raw features, in at least float32.

    Raises:
        ValueError: If there are no samples, a label is out of range, or features and labels do not pair up.
    """
    if features.ndim != 2 or labels.shape != features.shape[:1] or len(labels) == 0:
        raise ValueError(f"refit needs features [N, D], labels [N]; got {tuple(features.shape)}, {tuple(labels.shape)}")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels must lie in 0..{classes - 1}; got {int(labels.min())}..{int(labels.max())}")
    counts = torch.bincount(labels, minlength=classes)
    points = features.detach().to(torch.promote_types(features.dtype, torch.float32))
    centre = points.mean(dim=0)
    scale = points.std(dim=0, correction=0)
    scale = torch.where(scale > 1e-6, scale, 1.0)
    present = torch.nonzero(counts).flatten()

    weight = points.new_zeros(len(present), points.shape[1])
    bias = points.new_zeros(len(present))
    balance = 1.0 / counts[present].to(points)
    targets = torch.searchsorted(present, labels)
    _minimise((points - centre) / scale, targets, weight, bias, balance, weight_decay, iterations)

    weight = weight.detach() / scale
    bias = bias.detach() - weight @ centre
    full_weight = points.new_zeros(classes, points.shape[1])
    full_bias = (bias.min() - 1).repeat(classes)
    full_weight[present], full_bias[present] = weight, bias
    return full_weight, full_bias


def _minimise(
    points: Tensor,
    targets: Tensor,
    weight: Tensor,
    bias: Tensor,
    balance: Tensor,
    weight_decay: float,
    iterations: int,
) -> None:
    """Move `weight` and `bias` in place to the minimum of the penalised cross-entropy."""
    parameters = [weight.requires_grad_(), bias.requires_grad_()]
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=iterations,
        history_size=20,
        tolerance_grad=1e-8,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        with torch.enable_grad():
            fit = F.cross_entropy(F.linear(points, weight, bias), targets, weight=balance)
            loss = fit + weight_decay / 2 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
