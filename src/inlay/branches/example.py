"""Running a network on an example and reading what it returns."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from inlay.errors import InlayError

__all__ = ["Example", "described", "double", "floating_outputs", "run", "tensors_in"]

Example = Tensor | tuple[object, ...] | Mapping[str, object]
"""A batch, the positional arguments of the network as a tuple, or its keyword arguments as a mapping."""


def run(model: nn.Module, example: Example, role: str) -> object:
    """Call a network with an example, whose tensors stay as they are even if the network changes its input.

    Args:
        model: The network.
        example: What it is given.
        role: What the example is called in the error message.

    Raises:
        InlayError: If the network fails on it.
    """
    if not isinstance(example, (Tensor, tuple, Mapping)):
        raise InlayError(
            f"The {role} is a {type(example).__name__}; pass a tensor, a tuple of positional arguments or a mapping "
            f"of keyword arguments."
        )
    given = _with_tensors(example, lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad))
    try:
        if isinstance(given, Mapping):
            return model(**given)
        if isinstance(given, tuple):
            return model(*given)
        return model(given)
    except InlayError:
        raise
    except Exception as error:  # whatever a stranger's network raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise InlayError(
            f"The network fails on the {role} ({described(example)}); pass one that it accepts ({reason})."
        ) from error


def described(example: Example) -> str:
    """Describe an example by shapes, for messages."""
    if isinstance(example, Tensor):
        return f"{str(example.dtype).removeprefix('torch.')} {list(example.shape)}"
    if isinstance(example, Mapping):
        return ", ".join(f"{name}: {_described_value(value)}" for name, value in example.items())
    return ", ".join(_described_value(value) for value in example)


def double(example: Example) -> Example:
    """Return an example with its floating tensors in float64."""
    return _with_tensors(example, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def floating_outputs(returned: object) -> list[Tensor]:
    """Return the floating tensors of what a network returned: in lists, tuples, mappings and dataclasses.

    Raises:
        InlayError: If there is none.
    """
    found = [tensor for tensor in tensors_in(returned) if tensor.is_floating_point()]
    if not found:
        raise InlayError(
            f"The network returns a {type(returned).__name__} without any floating tensor, so outputs cannot be "
            f"compared; wrap it in a module that returns its features or scores."
        )
    return found


def _described_value(value: object) -> str:
    return described(value) if isinstance(value, Tensor) else type(value).__name__


def _with_tensors(example: Example, change: Callable[[Tensor], Tensor]) -> Example:
    """Copy an example with each tensor in it changed; a tensor that is in it twice stays one tensor."""
    changed: dict[int, Tensor] = {}

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in changed:
                changed[id(value)] = change(value)
            return changed[id(value)]
        if type(value) is dict:
            return {name: copied(item) for name, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(copied(item) for item in value)
        return value

    whole: Example = copied(dict(example) if isinstance(example, Mapping) else example)
    return whole


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield the tensors inside nested lists, tuples, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))
