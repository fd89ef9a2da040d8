"""What a hybrid remembers of the moment when its branches were attached."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from inlay.branches.hybrid import HybridUnit
from inlay.branches.targets import Targets

__all__ = ["Attachment", "attachments", "buffers_outside", "forget", "remember", "tensors_left_to_user"]


@dataclass(frozen=True)
class Attachment:
    """What a hybrid remembers of the moment when its branches were attached.

    Attributes:
        trainable: Patterns of the modules that are left to the user's own training.
        yours: Names of their parameters and buffers.
        buffers: Every other buffer outside the units with a branch, as it was; empty if that is not known.
    """

    trainable: tuple[str, ...]
    yours: frozenset[str]
    buffers: Mapping[str, Tensor]


def attachments(model: nn.Module) -> dict[str, Attachment]:
    """Return what was remembered, by each name that a hybrid has inside the model."""
    found = {name: getattr(module, "_attachment", None) for name, module in model.named_modules(remove_duplicate=False)}
    return {name: record for name, record in found.items() if isinstance(record, Attachment)}


def remember(hybrid: nn.Module, record: Attachment) -> None:
    """Keep a record with a hybrid; it travels with copies and pickles, but not in the state dict."""
    object.__setattr__(hybrid, "_attachment", record)


def forget(model: nn.Module) -> None:
    """Drop the records of all hybrids inside a model."""
    for module in model.modules():
        module.__dict__.pop("_attachment", None)


def tensors_left_to_user(model: nn.Module, targets: Targets) -> set[int]:
    """Return the identities of all parameters and buffers of trainable modules, whatever other names they have."""
    modules = [module for name, module in model.named_modules() if name and targets.is_trainable(name)]
    return {
        id(tensor)
        for module in modules
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    }


def buffers_outside(hybrid: nn.Module, yours: frozenset[str]) -> dict[str, Tensor]:
    """Copy every buffer outside the units with a branch, under every name.

    Args:
        hybrid: The hybrid itself, not a network around it.
        yours: Names of the tensors that are left to the user, which are not copied.
    """
    units = [module for module in hybrid.modules() if isinstance(module, HybridUnit)]
    inside = {id(buffer) for unit in units for buffer in unit.buffers()}
    named = hybrid.named_buffers(remove_duplicate=False)
    return {name: buffer.clone() for name, buffer in named if id(buffer) not in inside and name not in yours}
