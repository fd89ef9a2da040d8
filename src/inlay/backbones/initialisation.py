"""Weight initialisation that depends on an explicit generator alone."""

import torch
from torch import Tensor, nn

__all__ = ["kaiming_normal_"]


def kaiming_normal_(weight: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill a convolution kernel in place with Kaiming normal values (fan out, ReLU gain).

    Values are drawn in float32 on the generator's device and then copied, so one generator state gives the
    same kernel for every dtype, device and memory format.

    Args:
        weight: Kernel to fill, [C_out, C_in / groups, kH, kW].
        generator: Source of randomness; None draws from torch's default CPU generator.

    Returns:
        The kernel that was passed in.
    """
    device = torch.device("cpu") if generator is None else generator.device
    values = torch.empty(weight.shape, dtype=torch.float32, device=device)
    nn.init.kaiming_normal_(values, mode="fan_out", nonlinearity="relu", generator=generator)
    with torch.no_grad():
        return weight.copy_(values)
