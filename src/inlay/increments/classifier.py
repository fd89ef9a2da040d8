"""A network with its head: what a stage of labelled classes begins with and ends with."""

from torch import Tensor, nn

from inlay.backbones.incremental_resnets import without_last_relu

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

    @property
    def describing(self) -> nn.Module:
        """The network by whose features images are chosen and compared: that without the ReLU in front of pooling."""
        return without_last_relu(self.network)

    def frozen(self) -> "Classifier":
        """Return this classifier itself, in eval mode and without gradients."""
        return self.eval().requires_grad_(False)
