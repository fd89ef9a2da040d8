"""The size of the features that a network gives."""

import torch
from torch import Tensor, nn

from inlay.backbones.library import first_words
from inlay.errors import InlayError

__all__ = ["feature_size"]


def feature_size(module: nn.Module, example: Tensor) -> int:
    """Return D of a network that maps a batch of N images to features [N, D].

    The network runs once in eval mode without gradients; the mode of each of its modules is kept.

    Args:
        module: Any network that gives features.
        example: A batch of images, [N, C, H, W].

    Raises:
        InlayError: If the network does not take these images, or the output is not one tensor of shape [N, D].
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            features: object = module(example)
    except (RuntimeError, ValueError, AssertionError) as error:
        raise InlayError(
            f"This backbone does not take images of shape {list(example.shape[1:])} ({first_words(error)}); pass "
            f"another --size, or another backbone."
        ) from error
    finally:
        for part, training in modes:
            part.training = training
    if not isinstance(features, Tensor):
        raise InlayError(
            f"A backbone must return one tensor of features [N, D], but this one returned a "
            f"{type(features).__name__}; wrap it in a module that returns only the features."
        )
    if features.dim() != 2 or len(features) != len(example):
        raise InlayError(
            f"A backbone must return features [N, D], but this one returned shape {list(features.shape)} for "
            f"{len(example)} images; end it with global pooling and torch.nn.Flatten()."
        )
    return features.shape[1]
