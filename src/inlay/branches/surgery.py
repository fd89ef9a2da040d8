"""Replacing modules inside a network."""

from collections.abc import Mapping

from torch import nn

__all__ = ["replace_modules"]


def replace_modules(model: nn.Module, replacements: Mapping[str, nn.Module]) -> None:
    """Replace modules in place, under every name by which the network knows them.

    Args:
        model: Network to change.
        replacements: New module for each module name.
    """
    new = {id(model.get_submodule(name)): module for name, module in replacements.items()}
    everything = list(model.named_modules(remove_duplicate=False))
    for name, module in everything:
        if id(module) in new:
            model.set_submodule(name, new[id(module)], strict=True)
