"""Gates: how much of a novel branch is let through beside the frozen base."""

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from inlay.errors import InlayError

__all__ = ["AFF", "AMM", "IMM", "Constant", "Gate", "gate", "register"]

_GATES: dict[str, type["Gate"]] = {}
_GateClass = TypeVar("_GateClass", bound="type[Gate]")


@dataclass(frozen=True)
class Gate(ABC):
    """Combines the output of the frozen base with that of the novel branch.

    A gate is a frozen dataclass with a `name`, whose fields are its options. If its factor depends on gamma
    alone it overrides `scale` and can be merged; otherwise it sets `mergeable` to False and overrides `fuse`.
    """

    name: ClassVar[str]
    mergeable: ClassVar[bool] = True

    def fuse(self, base_out: Tensor, novel_out: Tensor, gamma: Tensor) -> Tensor:
        """Return the unit's output, base_out + g ⊗ novel_out.

        Args:
            base_out: Output of the base, [N, C, ...].
            novel_out: Output of the novel branch, [N, C, ...].
            gamma: Batch-norm scale of the base, [C].
        """
        per_channel = self.scale(gamma).to(novel_out.dtype).view(-1, *[1] * (novel_out.dim() - 2))
        return torch.addcmul(base_out, per_channel, novel_out)

    @abstractmethod
    def scale(self, gamma: Tensor) -> Tensor:
        """Return the constant factor g [C] of each channel, for the batch-norm scale gamma [C].

        Raises:
            InlayError: If the gate is not mergeable.
        """


def register(gate_class: _GateClass) -> _GateClass:
    """Make a gate known by its name; use as a decorator.

    Raises:
        ValueError: If another gate has that name.
    """
    if _GATES.setdefault(gate_class.name, gate_class) is not gate_class:
        raise ValueError(f"a gate named {gate_class.name!r} exists already")
    return gate_class


@register
@dataclass(frozen=True)
class IMM(Gate):
    """Plain addition, g = 1 (Eqs. 7 and 8)."""

    name: ClassVar[str] = "imm"

    def fuse(self, base_out: Tensor, novel_out: Tensor, gamma: Tensor) -> Tensor:
        """Return base_out + novel_out."""
        return base_out + novel_out

    def scale(self, gamma: Tensor) -> Tensor:
        """Return ones [C]."""
        return torch.ones_like(gamma)


@register
@dataclass(frozen=True)
class AFF(Gate):
    """Adaptive feature fusion, g = σ(−base_out) per element (first line of Eq. 9).

    The gate depends on the image, so the branch cannot be merged. Gradients flow through the gate to the
    branches of earlier layers.
    """

    name: ClassVar[str] = "aff"
    mergeable: ClassVar[bool] = False

    def fuse(self, base_out: Tensor, novel_out: Tensor, gamma: Tensor) -> Tensor:
        """Return base_out + σ(−base_out) ⊗ novel_out."""
        return torch.addcmul(base_out, torch.sigmoid(-base_out), novel_out)

    def scale(self, gamma: Tensor) -> Tensor:
        """Refuse, as there is no constant factor."""
        raise InlayError("AFF gates depend on the image and have no constant scale; use gate amm where one is needed.")


@register
@dataclass(frozen=True)
class AMM(Gate):
    """Adaptive model merging, g = σ(−γ) per channel (Eq. 10).

    Attributes:
        absolute: Whether to use σ(−|γ|), which counts a large negative γ as important too.
    """

    name: ClassVar[str] = "amm"
    absolute: bool = False

    def scale(self, gamma: Tensor) -> Tensor:
        """Return σ(−γ) or σ(−|γ|), [C]."""
        return torch.sigmoid(-gamma.abs() if self.absolute else -gamma)


@register
@dataclass(frozen=True)
class Constant(Gate):
    """One fixed factor for every channel.

    Attributes:
        value: The factor.
    """

    name: ClassVar[str] = "constant"
    value: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise InlayError(f"The constant gate needs a finite value such as value=0.5, not {self.value}.")

    def scale(self, gamma: Tensor) -> Tensor:
        """Return the factor repeated, [C]."""
        return torch.full_like(gamma, self.value)


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
    if name_or_gate not in _GATES:
        raise InlayError(f"Unknown gate {name_or_gate!r}: write one of {', '.join(sorted(_GATES))}.")
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
