"""A network with its head: what a stage of labelled classes begins with and ends with."""

from torch import Tensor, nn

__all__ = ["Classifier"]


class Classifier(nn.Module):
    """A network and a head on its features.

    Args:
        network: From inputs [B, C, H, W] to features [B, D].
        head: From features to scores of all classes seen, in the order in which they came, [B, K].
    """

    def __init__(self, network: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scores of all classes, [B, K]."""
        scores: Tensor = self.head(self.network(inputs))
        return scores

    def frozen(self) -> "Classifier":
        """Return this classifier itself, in eval mode and without gradients."""
        return self.eval().requires_grad_(False)
