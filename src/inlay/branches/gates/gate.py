"""What a gate is, and finding one by name."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from inlay.errors import InlayError

__all__ = ["Gate", "gate", "gate_names", "register"]

_GATES: dict[str, type["Gate"]] = {}
_GateClass = TypeVar("_GateClass", bound="type[Gate]")


@dataclass(frozen=True)
class Gate:
    """Says how much of a novel branch is let through beside the frozen base.

    A gate is a frozen dataclass with a `name`, whose fields are its options. If its factor depends on gamma alone
    it defines `scale` and can be merged. If it depends on the features it sets `mergeable` to False and defines
    `fuse`; its branches stay.
    """

    name: ClassVar[str]
    mergeable: ClassVar[bool] = True

    def scale(self, gamma: Tensor) -> Tensor:
        """Return the constant factor g [C] of each channel, for the gamma [C] of the base.

        Raises:
            InlayError: If the gate has no constant factor.
        """
        if self.mergeable:
            raise NotImplementedError(f"gate {self.name} defines no scale; one that has none is not mergeable")
        raise InlayError(
            f"{self.name.upper()} gates depend on the image and cannot be merged; keep the hybrid or train with "
            f"gate amm."
        )

    def fuse(self, base_out: Tensor, novel_out: Tensor) -> Tensor:
        """Return the unit's output for the two outputs, both of one shape; only for gates that cannot be merged."""
        raise NotImplementedError(f"gate {self.name} is given by its scale")


def register(gate_class: _GateClass) -> _GateClass:
    """Make a gate known by its name; use as a decorator.

    Raises:
        ValueError: If another gate has that name.
    """
    known = _GATES.get(gate_class.name, gate_class)
    # A notebook cell that is run again defines the same gate again.
    if (known.__module__, known.__qualname__) != (gate_class.__module__, gate_class.__qualname__):
        raise ValueError(f"a gate named {gate_class.name!r} exists already")
    _GATES[gate_class.name] = gate_class
    return gate_class


def gate_names() -> list[str]:
    """List the names that `gate` knows."""
    return sorted(_GATES)


def gate(name_or_gate: str | Gate, **options: Any) -> Gate:
    """Look a gate up by name, or pass one through.

    Args:
        name_or_gate: "imm", "aff", "amm", "constant", the name of a registered gate, or a gate.
        options: Fields of the gate that is named, for example absolute=True for "amm".

    Raises:
        InlayError: If the name or an option is unknown, an option is missing, or a gate comes with options.
    """
    if isinstance(name_or_gate, Gate):
        if options:
            raise InlayError("Options go with the name of a gate, as in gate('amm', absolute=True).")
        return name_or_gate
    if not isinstance(name_or_gate, str):
        raise InlayError(f"A gate is a name or a Gate, as in gate='amm', not a {type(name_or_gate).__name__}.")
    if name_or_gate not in _GATES:
        raise InlayError(f"Unknown gate {name_or_gate!r}: write one of {', '.join(gate_names())}.")
    gate_class = _GATES[name_or_gate]
    fields = dataclasses.fields(gate_class)
    known = [field.name for field in fields]
    required = [f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    if not set(required) <= set(options) <= set(known):
        raise InlayError(
            f"Gate {name_or_gate!r} takes {', '.join(known) or 'no options'}"
            f"{' and needs ' + ', '.join(required) if required else ''}, but was given "
            f"{', '.join(options) or 'nothing'}."
        )
    return gate_class(**options)
