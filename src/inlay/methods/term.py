"""What a loss term is."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from inlay.methods.model import StageOutputs
from inlay.settings import Settings

__all__ = ["Term"]


@dataclass(frozen=True)
class Term:
    """One summand of the total loss.

    Attributes:
        name: Name in the progress display.
        weight: Its weight, from the settings and the fraction of the stage that is done.
        loss: The unweighted loss of a batch.
    """

    name: str
    weight: Callable[[Settings, float], float]
    loss: Callable[[StageOutputs], Tensor]
