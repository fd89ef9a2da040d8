"""The optimiser that settings ask for."""

from collections.abc import Sequence

import torch
from torch import nn

from inlay.settings import TrainingSettings

__all__ = ["optimizer_of"]

_ADAPTIVE: dict[str, type[torch.optim.Adam]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def optimizer_of(parameters: Sequence[nn.Parameter], settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return an optimiser of parameters, of which there must be one at least."""
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "sgd":
        nesterov = settings.nesterov and settings.momentum > 0
        return torch.optim.SGD(
            parameters, lr=rate, momentum=settings.momentum, weight_decay=decay, nesterov=nesterov, fused=True
        )
    # Its count of steps must lie on the GPU for a step to be recorded.
    on_gpu = parameters[0].device.type == "cuda"
    kind = _ADAPTIVE[settings.optimizer]
    return kind(parameters, lr=rate, weight_decay=decay, fused=True, capturable=on_gpu)
