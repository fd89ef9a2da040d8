"""Networks side by side, of which only the newest learns."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["ExpandedNetwork", "expand"]


class ExpandedNetwork(nn.Module):
    """Concatenates the features of several networks; all but the last are frozen and stay in eval mode.

    Args:
        networks: From images [N, C, H, W] to features [N, Dᵢ], two at least, the oldest first; they are held, not
            copied.

    Raises:
        ValueError: If there is no old or no new network.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        if len(networks) < 2:
            raise ValueError(f"an expanded network holds two networks at least; got {len(networks)}")
        self.networks = nn.ModuleList(networks)
        self.networks[:-1].requires_grad_(False).eval()

    @property
    def newest(self) -> nn.Module:
        """The network that learns."""
        return self.networks[-1]

    def forward(self, images: Tensor) -> Tensor:
        """Map images [N, C, H, W] to the features of all networks, the oldest first, [N, ΣDᵢ]."""
        return torch.cat([network(images) for network in self.networks], dim=1)

    def train(self, mode: bool = True) -> "ExpandedNetwork":
        """Set the mode of the newest network; the others stay in eval mode."""
        super().train(mode)
        self.networks[:-1].eval()
        return self


def expand(network: nn.Module) -> ExpandedNetwork:
    """Put a network that can be trained, a copy of the newest one, beside those that there are.

    Args:
        network: One network, or networks that were expanded before; frozen by this.
    """
    old = list(network.networks) if isinstance(network, ExpandedNetwork) else [network]
    return ExpandedNetwork([*old, copy.deepcopy(old[-1]).requires_grad_(True)])
