"""Batch normalisation over the rows of all processes, for any network, without touching its modules."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

__all__ = ["GlobalBatchNorm", "global_batch_norm"]


class GlobalBatchNorm(TorchFunctionMode):
    """While active, `torch.nn.functional.batch_norm` in training sees the rows of all processes.

    Torch's own `SyncBatchNorm` does not run on the CPU and has to replace the modules of the network. Calls in
    evaluation mode are left alone. Every process must make the same calls in the same order.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a function of torch, or the global batch norm in its place."""
        if func is functional.batch_norm:
            return _batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if training:
        return global_batch_norm(input, running_mean, running_var, weight, bias, momentum, eps)
    return functional.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)


def global_batch_norm(
    rows: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise the rows of this process with the mean and variance of the rows of all processes.

    Let the gradient that arrives in each process be c times that of the loss, with the same c everywhere. The sums over
    all rows in the backward pass are taken over the processes, so the gradient of the rows is c times that of one
    process with the whole batch. The gradients of weight and bias are c times the share of the own rows: their sum over
    the processes is whole. With c the number of processes (see `World.gather`) the average of
    DistributedDataParallel is that sum, divided by c.

    Args:
        rows: Inputs of this process, [N, C, ...]; N may differ between processes.
        running_mean: Updated in place, [C], or None.
        running_var: Updated in place with the unbiased variance, [C], or None.
        weight: Factors after normalising, [C], or None for ones.
        bias: Terms after normalising, [C], or None for zeros.
        momentum: Share of the new statistics in the running ones.
        eps: Added to the variance.

    Returns:
        Tensor like rows, of the same type and memory format.
    """
    with torch.no_grad():
        mean, variance, count = _global_moments(rows)
        _update(running_mean, mean, momentum)
        _update(running_var, variance * (count / (count - 1)), momentum)
    normalised: Tensor = _Normalise.apply(  # type: ignore[no-untyped-call]
        rows, weight, bias, mean, variance, count, eps
    )
    return normalised


def _global_moments(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and biased variance, [C], and the count of values per channel, [], over all processes.

    Means and centred squares of the processes are combined, because sums of plain squares would cancel.
    """
    count = rows.numel() // rows.shape[1]
    exact = rows.to(_exact_type(rows))
    own_mean = _channel_sums(exact) / max(count, 1)
    own_squares = _channel_sums((exact - _per_channel(own_mean, rows)).square_())
    own = torch.cat([own_mean, own_squares, own_mean.new_full((1,), count)])
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    means, squares, counts = torch.split(torch.stack(parts), [rows.shape[1], rows.shape[1], 1], dim=1)
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    variance = (squares + counts * (means - mean).square()).sum(0) / total
    return mean, variance, total


def _update(running: Tensor | None, new: Tensor, momentum: float) -> None:
    if running is not None:
        running.copy_(momentum * new + (1 - momentum) * running)


class _Normalise(Function):
    """Normalising with given statistics that are themselves functions of the rows of all processes."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: Tensor,
        eps: float,
    ) -> Tensor:
        scale = (variance + eps).rsqrt()
        ctx.save_for_backward(rows, weight, mean, scale, count)
        ctx.bias_type = None if bias is None else bias.dtype
        weight, bias = (part if part is None else part.to(mean.dtype) for part in (weight, bias))
        return functional.batch_norm(rows, mean, variance, weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, mean, scale, count = ctx.saved_tensors
        exact = gradient.to(mean.dtype)
        normalised = (rows - _per_channel(mean, rows)).mul_(_per_channel(scale, rows))
        sums = torch.stack([_channel_sums(exact), _channel_sums(exact * normalised)])
        for_weight = sums[1].to(weight.dtype) if ctx.needs_input_grad[1] else None
        for_bias = sums[0].to(ctx.bias_type) if ctx.needs_input_grad[2] else None
        if not ctx.needs_input_grad[0]:
            return None, for_weight, for_bias, None, None, None, None
        means = sums.clone()
        dist.all_reduce(means)
        means /= count
        factor = scale if weight is None else scale * weight
        for_rows = exact - _per_channel(means[0], rows) - normalised.mul_(_per_channel(means[1], rows))
        for_rows = for_rows.mul_(_per_channel(factor, rows)).to(rows.dtype)
        return for_rows, for_weight, for_bias, None, None, None, None


def _exact_type(rows: Tensor) -> torch.dtype:
    return torch.float64 if rows.dtype == torch.float64 else torch.float32


def _channel_sums(values: Tensor) -> Tensor:
    """Return the sums over everything but the channels of [N, C, ...]: [C]."""
    return values.sum([0, *range(2, values.dim())])


def _per_channel(values: Tensor, rows: Tensor) -> Tensor:
    """Give values [C] the shape that broadcasts over rows [N, C, ...]."""
    return values.view(-1, *[1] * (rows.dim() - 2))
