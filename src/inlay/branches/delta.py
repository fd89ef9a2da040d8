"""The delta of a stage: what it adds to the tensors of a network."""

import hashlib
import json
from collections.abc import Mapping

import torch
from torch import Tensor

from inlay.errors import InlayError

__all__ = ["applied", "dtype_name", "fingerprint", "moved", "rounded"]

_STORAGES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def rounded(
    delta: Mapping[str, Tensor], state: Mapping[str, Tensor], storage: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Round a delta to the type in which it is stored.

    Args:
        delta: What each tensor that moves gains; the delta of a tensor that is not floating is its new value.
        state: Tensors that the delta moves, by name, and perhaps others.
        storage: float16, bfloat16, float32 or float64; None is the type of each tensor that moves.

    Returns:
        Floating deltas in the storage type, the others as they are.

    Raises:
        InlayError: If the storage type is another, a value is not finite or too large for it, or the delta
            belongs to another network.
    """
    if storage is not None and storage not in _STORAGES:
        known = ", ".join(f"torch.{dtype_name(dtype)}" for dtype in _STORAGES)
        raise InlayError(f"A delta cannot be stored as {storage}; choose one of {known}.")
    _check_fit(delta, state)
    result = {}
    for name, change in delta.items():
        if not change.is_floating_point():
            result[name] = change
            continue
        result[name] = change.detach().to(storage or state[name].dtype)
        if not _is_finite(change):
            raise InlayError(
                f"The delta of {name!r} is not finite; go back to a checkpoint from before training diverged."
            )
        if not _is_finite(result[name]):
            raise InlayError(
                f"The delta of {name!r} is too large for {dtype_name(result[name].dtype)}; store it as "
                f"torch.float32 or torch.bfloat16."
            )
    return result


def applied(state: Mapping[str, Tensor], delta: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Move a state by a delta: W_t = W_{t-1} + delta_t in the type of W, after delta_t was converted to it.

    Args:
        state: Tensors by name; they are not changed.
        delta: What each tensor that moves gains; the delta of a tensor that is not floating is its new value.

    Returns:
        New tensors for the names in the delta, the very tensors of the state for the others.

    Raises:
        InlayError: If the delta belongs to another network.
    """
    _check_fit(delta, state)
    result = dict(state)
    for name, change in delta.items():
        tensor = state[name].detach()
        # One rounding of the delta and one of the sum, so that every replay takes the same two steps.
        converted = change.detach().to(device=tensor.device, dtype=tensor.dtype)
        result[name] = tensor + converted if tensor.is_floating_point() else converted.clone()
    return result


def moved(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the delta of every tensor whose bits differ between two states.

    Args:
        before: Tensors by name.
        after: Tensors of the same names, shapes and types.

    Returns:
        after - before in float64 for floating tensors, the new values for others.

    Raises:
        InlayError: If the states are of different networks.
    """
    missing = next((name for name in before if name not in after), None)
    if missing is not None:
        raise InlayError(f"The states are of different networks: the second has no tensor {missing!r}.")
    _check_fit(after, before)
    delta = {}
    for name, tensor in before.items():
        new = after[name].detach().to(tensor.device)
        if new.dtype != tensor.dtype:
            raise InlayError(
                f"The states differ in the type of {name!r}, {dtype_name(tensor.dtype)} and {dtype_name(new.dtype)}; "
                f"convert one network to the type of the other."
            )
        if not torch.equal(_octets(tensor), _octets(new)):
            delta[name] = new.double() - tensor.detach().double() if new.is_floating_point() else new.clone()
    return delta


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and bits, in hexadecimal.

    It does not depend on the order of the names, on devices or on memory formats.

    Args:
        state: Tensors by name.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        digest.update(json.dumps([name, dtype_name(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(_octets(tensor).cpu().numpy().data)
    return digest.hexdigest()


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type as a user writes it after `torch.`."""
    return str(dtype).removeprefix("torch.")


def _check_fit(delta: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    for name, change in delta.items():
        tensor = state.get(name)
        if tensor is None:
            raise _another_network(f"that has no tensor {name!r}")
        if change.shape != tensor.shape:
            shapes = f"{list(tensor.shape)} and not {list(change.shape)}"
            raise _another_network(f"whose tensor {name!r} has the shape {shapes}")
        both_floating = change.is_floating_point() and tensor.is_floating_point()
        if not both_floating and change.dtype != tensor.dtype:
            types = f"{dtype_name(tensor.dtype)} and not {dtype_name(change.dtype)}"
            raise _another_network(f"whose tensor {name!r} has the type {types}")


def _another_network(what: str) -> InlayError:
    return InlayError(
        f"The delta belongs to another network: it was applied to one {what}; use it with the network that it "
        f"was made for."
    )


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _octets(tensor: Tensor) -> Tensor:
    # Bits, unlike values, tell NaN from NaN and compare in every type; a scalar has no view as octets.
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
