"""Copying a network and replacing modules inside it."""

import copy
from collections.abc import Mapping

from torch import nn

from inlay.errors import InlayError

__all__ = ["copied", "replace_modules"]


def copied(model: nn.Module) -> nn.Module:
    """Return a deep copy of a network.

    Raises:
        InlayError: If it holds something that cannot be copied.
    """
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InlayError(
            f"The network cannot be copied ({reason}); if its modules keep tensors of their last forward pass, run it "
            f"once under torch.no_grad()."
        ) from error


def replace_modules(model: nn.Module, replacements: Mapping[str, nn.Module]) -> None:
    """Replace modules in place, under every name by which the network knows them.

    Args:
        model: Network to change.
        replacements: New module for each module name; the network itself has none.
    """
    new = {id(model.get_submodule(name)): module for name, module in replacements.items()}
    everything = list(model.named_modules(remove_duplicate=False))
    for name, module in everything:
        if id(module) in new:
            model.set_submodule(name, new[id(module)], strict=True)
