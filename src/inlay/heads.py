"""Heads on top of the features: linear, cosine prototypes, projection, and two heads side by side."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from inlay.backbones.twin import ResidualStudentHead
from inlay.discovery.advised import AdvisedDensities
from inlay.discovery.calibration import HeadScale, calibrated_concat
from inlay.discovery.density import DensityHead
from inlay.discovery.projection import StudentHead
from inlay.errors import InlayError

__all__ = [
    "ConcatenatedHead",
    "CosineHead",
    "MappedCosineHead",
    "NovelHead",
    "describe_head",
    "grow",
    "kaiming_linear",
    "linear",
    "projector",
    "rebuild_head",
]


class CosineHead(nn.Module):
    """Scores features by their cosine similarity to one prototype per class.

    Args:
        prototypes: Starting prototypes, [K, D]; only their directions matter.
    """

    def __init__(self, prototypes: Tensor) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(functional.normalize(prototypes.detach().clone(), dim=1))

    def forward(self, features: Tensor) -> Tensor:
        """Return similarities in -1..1, [B, K], for features [B, D]."""
        return functional.normalize(features, dim=1) @ functional.normalize(self.prototypes, dim=1).T


class MappedCosineHead(nn.Module):
    """Cosine prototypes in a linear image of the features, which is not trained.

    Args:
        centre: Subtracted from the features, [D].
        matrix: Map of the features, [D, M].
        prototypes: Starting prototypes, [K, M]; only their directions matter.
    """

    centre: Tensor
    matrix: Tensor

    def __init__(self, centre: Tensor, matrix: Tensor, prototypes: Tensor) -> None:
        super().__init__()
        self.register_buffer("centre", centre.detach().clone())
        self.register_buffer("matrix", matrix.detach().clone())
        self.cosine = CosineHead(prototypes)

    def forward(self, features: Tensor) -> Tensor:
        """Return similarities in -1..1, [B, K], for features [B, D]."""
        scores: Tensor = self.cosine((features - self.centre) @ self.matrix)
        return scores


NovelHead = nn.Linear | CosineHead | MappedCosineHead | StudentHead | ResidualStudentHead


class ConcatenatedHead(nn.Module):
    """An old head beside a novel one, for systems that never compare the two in training.

    The old head is copied and frozen; the novel one is held as it is.

    Args:
        old: Head over the O old classes.
        novel: Head over the K new classes, for the same features.
        old_scale: Measured size of the old head's scores.
        novel_scale: Measured size of the novel head's scores.

    Raises:
        ValueError: If a head is of another kind, or the two take features of different sizes.
    """

    old_offset: Tensor
    old_scale: Tensor
    novel_offset: Tensor
    novel_scale: Tensor

    def __init__(self, old: nn.Linear, novel: NovelHead, old_scale: HeadScale, novel_scale: HeadScale) -> None:
        super().__init__()
        if type(old) is not nn.Linear:
            raise ValueError(f"the old head must be linear; got a {type(old).__name__}")
        inputs, _ = _size_of(novel)
        if inputs != old.in_features:
            raise ValueError(f"the old head takes features of size {old.in_features}, the novel one of size {inputs}")
        self.old = copy.deepcopy(old).requires_grad_(False)
        self.novel = novel
        for name, scale in (("old", old_scale), ("novel", novel_scale)):
            self.register_buffer(f"{name}_offset", scale.offset.detach().to(old.weight, copy=True))
            self.register_buffer(f"{name}_scale", scale.scale.detach().to(old.weight, copy=True))

    @property
    def in_features(self) -> int:
        """Size D of the features."""
        return self.old.in_features

    @property
    def out_features(self) -> int:
        """Number O + K of classes."""
        return self.old_classes + _size_of(self.novel)[1]

    @property
    def old_classes(self) -> int:
        """Number O of old classes."""
        return self.old.out_features

    def forward(self, features: Tensor) -> Tensor:
        """Return the scores of both heads as they are, old classes first, [N, O + K], for features [N, D]."""
        return torch.cat([self.old(features), self.novel(features)], dim=1)

    def calibrated(self, features: Tensor) -> Tensor:
        """Return the scores of both heads on one scale, [N, O + K], for features [N, D]; see `calibrated_concat`."""
        old, novel = HeadScale(self.old_offset, self.old_scale), HeadScale(self.novel_offset, self.novel_scale)
        return calibrated_concat(self.old(features), self.novel(features), old, novel)


def linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Return a linear layer with PyTorch's default distribution, drawn from a generator."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device=generator.device)
    bound = 1 / math.sqrt(inputs)
    with torch.no_grad():
        for parameter in (layer.weight, layer.bias):
            drawn = torch.rand(parameter.shape, generator=generator, device=generator.device)
            parameter.copy_((2 * drawn - 1) * bound)
    return layer


def kaiming_linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Return a linear layer with normal weights of variance 1 / inputs and biases 0, drawn from a generator."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device=generator.device)
    with torch.no_grad():
        layer.weight.normal_(0, 1 / math.sqrt(inputs), generator=generator)
        layer.bias.zero_()
    return layer


def projector(inputs: int, outputs: int, generator: torch.Generator) -> nn.Sequential:
    """Return the two-layer projection head g of the contrastive loss."""
    return nn.Sequential(linear(inputs, inputs, generator), nn.ReLU(), linear(inputs, outputs, generator))


def grow(head: nn.Linear, classes: int, generator: torch.Generator, present: Tensor | None = None) -> nn.Linear:
    """Return a copy of a joint head with more outputs.

    Old rows are kept. New rows are random and each new bias is the smallest old one minus 1, so that new
    outputs do not win before they are trained.

    Args:
        head: Joint head over the O old classes.
        classes: Number of outputs to add.
        generator: Source of the new rows.
        present: Classes that can be predicted, bool [O], whose biases count; None counts all.
    """
    old = head.out_features
    wider = linear(head.in_features, old + classes, generator).to(head.weight)
    with torch.no_grad():
        wider.weight[:old] = head.weight
        wider.bias[:old] = head.bias
        wider.bias[old:] = (head.bias if present is None else head.bias[present]).min() - 1
    return wider


def describe_head(head: nn.Module) -> dict[str, Any]:
    """Describe the structure of a head as JSON-ready data; its sizes are those of its tensors.

    Args:
        head: A linear head with bias, a cosine or clustering head, a `DensityHead`, alone or advised, or a
            `ConcatenatedHead`.

    Returns:
        "kind" and, where that is "concatenated", the description of the "novel" head.

    Raises:
        ValueError: If the head is of another kind.
    """
    if type(head) is ConcatenatedHead:
        return {"kind": "concatenated", "novel": describe_head(head.novel)}
    if type(head) is DensityHead:
        return {"kind": "densities"}
    if type(head) is AdvisedDensities:
        return {"kind": "advised-densities"}
    return {"kind": _kind_of(head)}


def rebuild_head(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """Rebuild a head that gives the same outputs bit for bit, with the precision and device of its tensors.

    Args:
        description: What `describe_head` returned.
        tensors: State dict of the head; the tensors are copied.

    Raises:
        InlayError: If the description knows another kind of head, or the tensors do not fit it.
    """
    concatenated = description.get("kind") == "concatenated"
    described = description.get("novel") if concatenated else description
    kind = described.get("kind") if isinstance(described, Mapping) else None
    if kind not in (_KINDS if concatenated else [*_KINDS, *_DENSITIES]):
        raise InlayError(
            f"The head is described by the unknown kind {kind!r}; write one of {', '.join(_KINDS)}, alone or as the "
            f"novel part of the kind concatenated, or {' or '.join(_DENSITIES)}."
        )
    try:
        if kind == "densities":
            return DensityHead.from_tensors(tensors)
        if kind == "advised-densities":
            return _advised(tensors)
        head = _empty_concatenated(str(kind), tensors) if concatenated else _empty(str(kind), tensors)
        head.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)
    except (KeyError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InlayError(
            f"The tensors do not fit a head of the kind {description['kind']}; give those that were saved with its "
            f"description ({reason})."
        ) from error
    return head


_KINDS: dict[str, type[NovelHead]] = {
    "linear": nn.Linear,
    "cosine": CosineHead,
    "mapped-cosine": MappedCosineHead,
    "student": StudentHead,
    "residual-student": ResidualStudentHead,
}


_DENSITIES = ("densities", "advised-densities")


def _advised(tensors: Mapping[str, Tensor]) -> AdvisedDensities:
    head = _empty("linear", _under(tensors, "head."))
    assert isinstance(head, nn.Linear)
    head.load_state_dict({name: tensor.clone() for name, tensor in _under(tensors, "head.").items()}, assign=True)
    densities = DensityHead.from_tensors(_under(tensors, "densities."))
    return AdvisedDensities(densities, head, tensors["advised"].clone()).eval()


def _kind_of(head: nn.Module) -> str:
    # By exact type, as a subclass may hold more than its tensors tell.
    for kind, known in _KINDS.items():
        if type(head) is known:
            return kind
    raise ValueError(f"a head must be of the kind {', '.join(_KINDS)}; got a {type(head).__name__}")


def _size_of(head: NovelHead) -> tuple[int, int]:
    """Return the size of the features that a head takes, and the number of its classes."""
    _kind_of(head)
    if isinstance(head, nn.Linear):
        return head.in_features, head.out_features
    if isinstance(head, CosineHead):
        classes, inputs = head.prototypes.shape
        return inputs, classes
    if isinstance(head, MappedCosineHead):
        return len(head.matrix), len(head.cosine.prototypes)
    if isinstance(head, StudentHead):
        return _size_of(head.bottleneck)
    inputs, classes = _size_of(head.student)
    return 2 * inputs, classes


def _empty_concatenated(novel_kind: str, tensors: Mapping[str, Tensor]) -> ConcatenatedHead:
    old = _empty("linear", _under(tensors, "old."))
    novel = _empty(novel_kind, _under(tensors, "novel."))
    assert isinstance(old, nn.Linear)
    unknown = HeadScale(torch.empty((), device="meta"), torch.empty((), device="meta"))
    return ConcatenatedHead(old, novel, unknown, unknown)


def _empty(kind: str, tensors: Mapping[str, Tensor]) -> NovelHead:
    """Return a head of the right sizes without values, on the meta device."""
    if kind == "linear":
        outputs, inputs = _matrix(tensors, "weight").shape
        return nn.Linear(inputs, outputs, device="meta")
    if kind == "cosine":
        return CosineHead(_matrix(tensors, "prototypes"))
    if kind == "mapped-cosine":
        matrix = _matrix(tensors, "matrix")
        return MappedCosineHead(matrix.new_empty(len(matrix)), matrix, _matrix(tensors, "cosine.prototypes"))
    if kind == "student":
        matrix = _matrix(tensors, "bottleneck.weight")
        return StudentHead(matrix, matrix.new_empty(matrix.shape[1]), _matrix(tensors, "centres"))
    student = _empty("student", _under(tensors, "student."))
    assert isinstance(student, StudentHead)
    return ResidualStudentHead(student)


def _matrix(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors or tensors[name].ndim != 2:
        raise ValueError(f"{name!r} is missing or not a matrix")
    return tensors[name].to("meta")


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
