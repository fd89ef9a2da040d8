"""Choosing which layers of a network get a branch, and of what shape."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from torch import nn

from inlay.branches.layers import Layer
from inlay.branches.units import KINDS, Kind, Unit
from inlay.errors import InlayError

__all__ = ["Targets", "matches"]

_NORMED: tuple[Kind, ...] = ("conv-bn", "linear-bn", "mlp")


@dataclass(frozen=True)
class Targets:
    """Which layers get a branch, what the branches look like, and what is left to the user's own training.

    Attributes:
        include: Glob patterns for module names, such as "layer2" (and all that it holds) or "*.conv1"; None is every
            layer of the chosen kinds.
        exclude: Glob patterns for module names that get no branch.
        kinds: Kinds of unit ("conv-bn", "linear-bn", "mlp", "conv", "linear") or module types; "all" for every kind.
            None means every kind where `include` names layers, and otherwise those gated by a norm, as in the paper:
            the first three.
        depth: Part of the network, as two fractions of the order in which the layers run: (0.5, 1) is the later half.
        kernel: "same" size as the base (the paper), or "1x1" at its centre (re-parameterised adapters as in SSRE).
        batch_norm: Whether the branch of a layer with batch norm has one of its own.
        trainable: Glob patterns for modules that you train yourself, such as a head: not folded, not branched, with
            gradients. Batch norms in them stay in eval mode all the same.
    """

    include: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    kinds: Literal["all"] | Sequence[str | type[nn.Module]] | None = None
    depth: tuple[float, float] = (0.0, 1.0)
    kernel: Literal["same", "1x1"] = "same"
    batch_norm: bool = True
    trainable: Sequence[str] = ()

    def __post_init__(self) -> None:
        for field in ("include", "exclude", "trainable"):
            if isinstance(getattr(self, field), str):
                raise InlayError(f"{field} takes a list of patterns: write {field}=[{getattr(self, field)!r}].")
        if isinstance(self.kinds, str) and self.kinds != "all":
            raise InlayError(f"kinds takes a list or 'all': write kinds=[{self.kinds!r}].")
        unknown = [kind for kind in self.kinds or () if kind not in KINDS and not isinstance(kind, type)]
        if self.kinds != "all" and unknown:
            raise InlayError(f"Unknown kind {unknown[0]!r}: write some of {', '.join(KINDS)}, a module type, or 'all'.")
        if self.kernel not in ("same", "1x1"):
            raise InlayError(f"Unknown kernel {self.kernel!r}: write 'same' or '1x1'.")
        if not isinstance(self.depth, Sequence) or len(self.depth) != 2 or not 0 <= self.depth[0] < self.depth[1] <= 1:
            raise InlayError(f"depth takes two fractions such as (0.5, 1.0) for the later half, not {self.depth}.")

    def check_patterns(self, names: Sequence[str]) -> None:
        """Refuse patterns that match none of the names.

        Raises:
            InlayError: If there is one.
        """
        if self.include is not None and not self.include:
            raise InlayError("include is empty; write None for all layers, or patterns such as 'layer2*'.")
        for pattern in (*(self.include or ()), *self.exclude):
            if not any(matches(name, [pattern]) for name in names):
                some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
                raise InlayError(f"Pattern {pattern!r} matches none of the layers: {some or 'there are none'}.")

    def why_left_out(self, unit: Unit, layer: Layer, position: float) -> str:
        """Return why a unit that could take a branch is not chosen, or nothing.

        Args:
            unit: The unit.
            layer: Its layer.
            position: Where it runs, from 0 for the first unit to just below 1 for the last.
        """
        if matches(unit.name, self.exclude):
            return "excluded by name"
        if self.include is not None and not matches(unit.name, self.include):
            return "not included by name"
        if not self.depth[0] <= position < self.depth[1]:
            return f"outside depth {self.depth[0]:g} to {self.depth[1]:g}"
        if not self._has_kind(unit, layer) and self.kinds is not None:
            return f"of kind {unit.kind}, which is not chosen" + (f" ({unit.note})" if unit.note else "")
        if not self._has_kind(unit, layer):
            missing = unit.note or ("no batch norm" if unit.kind == "conv" else "no norm of an MLP before it")
            return f"{missing}; kinds='all' gates it by the norms of its rows"
        return ""

    def why_refused(self, layer: Layer) -> str:
        """Return why a chosen unit cannot have a branch of the asked shape, or nothing."""
        if self.kernel == "1x1" and not _has_centre(layer):
            return "a 1x1 branch needs odd kernels with padding dilation·(k−1)/2"
        return ""

    def is_trainable(self, name: str) -> bool:
        """Say whether a module or tensor is left to the user."""
        return matches(name, self.trainable)

    def _has_kind(self, unit: Unit, layer: Layer) -> bool:
        if self.kinds == "all" or (self.kinds is None and self.include is not None):
            return True
        kinds = _NORMED if self.kinds is None else self.kinds
        types = tuple(kind for kind in kinds if isinstance(kind, type))
        return unit.kind in kinds or isinstance(layer, types)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Say whether a name, or that of a module that holds it, matches any of the glob patterns."""
    parts = name.split(".")
    holders = [".".join(parts[: end + 1]) for end in range(len(parts))]
    return any(fnmatchcase(holder, pattern) for holder in holders for pattern in patterns)


def _has_centre(layer: Layer) -> bool:
    if isinstance(layer, nn.Linear):
        return True
    if isinstance(layer.padding, str):
        odd = all(size % 2 == 1 for size in layer.kernel_size)
        return set(layer.kernel_size) == {1} or (layer.padding == "same" and odd)
    sides = zip(layer.kernel_size, layer.padding, layer.dilation, strict=True)
    return all(size % 2 == 1 and 2 * padding == dilation * (size - 1) for size, padding, dilation in sides)
