"""Modules that stay in eval mode whatever their parent is told."""

from typing import Any, Self

from torch import nn

__all__ = ["freeze", "thaw"]

_FROZEN_CLASSES: dict[type[nn.Module], type[nn.Module]] = {}


class _StaysInEval(nn.Module):
    """Passes `train` on to the children but never leaves eval mode itself."""

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.training = False
        return self


def freeze(module: nn.Module) -> None:
    """Keep one module, without its children, in eval mode whatever `train` is told.

    The class is changed rather than a hook added, so that the mode is right at once, survives a deep copy,
    and holds when the module is a part of a larger network.

    Args:
        module: Module to change in place.
    """
    if not isinstance(module, _StaysInEval):
        module.__class__ = _frozen_class(type(module))
    module.training = False


def thaw(model: nn.Module) -> None:
    """Give every frozen module of a network its own class back.

    Args:
        model: Network to change in place.
    """
    for module in model.modules():
        plain = getattr(type(module), "plain_class", None)
        if isinstance(module, _StaysInEval) and plain is not None:
            module.__class__ = plain


def _frozen_class(plain: type[nn.Module]) -> type[nn.Module]:
    if plain not in _FROZEN_CLASSES:
        attributes: dict[str, Any] = {"plain_class": plain, "__module__": plain.__module__}
        _FROZEN_CLASSES[plain] = type(plain.__name__, (_StaysInEval, plain), attributes)
    return _FROZEN_CLASSES[plain]
