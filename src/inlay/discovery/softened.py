"""Agreement of softened predictions with those of the model before the stage: learning without forgetting."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["softened_distillation"]


def softened_distillation(
    current_logits: Tensor, old_logits: Tensor, temperature: float = 2.0, scaled: bool = False
) -> Tensor:
    """Hold the predictions over the old classes close to those of the model before the stage.

    The cross-entropy of softmax(current / T) against softmax(old / T): Li and Hoiem (Learning without
    Forgetting, ECCV 2016), on images of new classes as ResTune uses it. Its minimum is not 0 but the entropy
    of the softened old predictions.

    Args:
        current_logits: Logits of the model in training over the old classes, [B, O].
        old_logits: Logits of the model before the stage for the same images, [B, O]; no gradient flows to them.
        temperature: Divisor T of the logits, above 0; large values soften more.
        scaled: Multiply by T², which keeps the size of the gradients about independent of T.

    Returns:
        The scalar mean over the images, in at least float32.

    Raises:
        ValueError: If the shapes differ, there are no images or the temperature is not above 0.
    """
    if current_logits.shape != old_logits.shape or current_logits.ndim != 2 or current_logits.numel() == 0:
        raise ValueError(
            f"both models need logits of one shape [B, O]; "
            f"got {tuple(current_logits.shape)} and {tuple(old_logits.shape)}"
        )
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0; got {temperature}")
    precision = torch.promote_types(torch.promote_types(current_logits.dtype, old_logits.dtype), torch.float32)
    targets = (old_logits.detach().to(precision) / temperature).softmax(dim=1)
    loss = F.cross_entropy(current_logits.to(precision) / temperature, targets)
    return loss * temperature**2 if scaled else loss
