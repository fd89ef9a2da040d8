"""Refusing networks that cannot take branches as they are."""

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from inlay.branches.hybrid import HybridUnit
from inlay.branches.trace import is_layer
from inlay.errors import InlayError

__all__ = ["check_finite", "check_network"]


def check_network(model: nn.Module) -> None:
    """Refuse a network that has branches, is a bare layer, in training mode, compiled, or holds values not finite.

    Raises:
        InlayError: With what to do instead.
    """
    if is_layer(model):
        raise InlayError(f"The network is a single {type(model).__name__}; wrap it: torch.nn.Sequential(model).")
    for name, module in model.named_modules():
        # A scripted part inside a network is no obstacle: its layers are not seen, and it is left as it is.
        if _is_compiled(module) or (module is model and isinstance(module, torch.jit.ScriptModule)):
            what = f"Module {name!r}" if name else "The network"
            raise InlayError(f"{what} is compiled; pass what it was before torch.compile or torch.jit.")
        if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            raise InlayError(f"The network is wrapped in {type(module).__name__}; pass its .module, and wrap it later.")
    if any(isinstance(module, HybridUnit) for module in model.modules()):
        raise InlayError("The network has branches already; merge them with inlay.branches.merge first.")
    if any(module.training for module in model.modules()):
        raise InlayError("The network is in training mode; call model.eval() first.")
    for name, parameter in model.named_parameters():
        if parameter.device.type == "mps":
            raise InlayError("The network is on mps, which has no float64 to merge in; call model.cpu() first.")
        if is_lazy(parameter) or parameter.is_meta:
            raise InlayError(f"Parameter {name!r} has no values yet; run the network once or load its weights.")
    check_finite(model, "load weights from before training diverged")


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def check_finite(model: nn.Module, remedy: str) -> None:
    """Refuse a network that holds values that are not finite.

    Args:
        model: The network.
        remedy: What to do instead, for the message.

    Raises:
        InlayError: With the name of the first such tensor.
    """
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise InlayError(f"Parameter {name!r} holds values that are not finite; {remedy}.")
    for name, buffer in model.named_buffers():
        # Infinite values are no mistake in some buffers, such as attention masks.
        if bool(torch.isnan(buffer).any()):
            raise InlayError(f"Buffer {name!r} holds values that are not numbers; {remedy}.")
