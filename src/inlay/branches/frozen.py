"""Modules that stay in eval mode whatever their parent is told."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, SupportsIndex

from torch import nn

__all__ = ["freeze", "thaw"]

_FROZEN_CLASSES: dict[type[nn.Module], type[nn.Module]] = {}


class _StaysInEval(nn.Module):
    """Passes `train` on to the children but never leaves eval mode itself."""

    plain_class: type[nn.Module]

    def train(self, mode: bool = True) -> Self:
        # The module's own `train` is not told, as it may do more than to set the mode.
        for child in self.children():
            child.train(mode)
        self.training = False
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        # Pickle finds classes by name, and the name of a frozen class leads to the plain one.
        with _in_plain_class(self):
            reduced: Any = self.__reduce_ex__(protocol)
        make, arguments, *state = reduced
        return (_make_frozen, (make, arguments), *state)


def freeze(module: nn.Module) -> None:
    """Keep one module, without its children, in eval mode whatever `train` is told.

    The class is changed rather than a hook added, so that the mode is right at once, survives a deep copy and
    pickling, and holds when the module is a part of a larger network.

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
        if isinstance(module, _StaysInEval):
            module.__class__ = module.plain_class  # type: ignore[assignment]  # what it was before


def _frozen_class(plain: type[nn.Module]) -> type[nn.Module]:
    if plain not in _FROZEN_CLASSES:
        attributes: dict[str, Any] = {
            "plain_class": plain,
            "__module__": plain.__module__,
            "__qualname__": plain.__qualname__,
        }
        if hasattr(plain, "__deepcopy__"):
            attributes["__deepcopy__"] = _copy_frozen
        _FROZEN_CLASSES[plain] = type(plain.__name__, (_StaysInEval, plain), attributes)
    return _FROZEN_CLASSES[plain]


def _make_frozen(make: Callable[..., nn.Module], arguments: tuple[Any, ...]) -> nn.Module:
    module = make(*arguments)
    module.__class__ = _frozen_class(type(module))
    return module


def _copy_frozen(module: _StaysInEval, memo: dict[int, Any]) -> nn.Module:
    with _in_plain_class(module):
        twin: nn.Module = copy.deepcopy(module, memo)
    freeze(twin)
    return twin


@contextmanager
def _in_plain_class(module: _StaysInEval) -> Iterator[None]:
    """Give a module its own class for a while: some, such as traced graphs, copy and pickle themselves by it."""
    frozen = type(module)
    module.__class__ = module.plain_class  # type: ignore[assignment]  # what it was before
    try:
        yield
    finally:
        module.__class__ = frozen
