"""Finding the layers of a network that can take a branch, and what gates each of them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from inlay.branches.example import Example
from inlay.branches.folded import Folded, has_activation
from inlay.branches.layers import Layer, Side
from inlay.branches.trace import Call, is_batch_norm, is_layer, is_token_norm, trace

__all__ = ["KINDS", "NOT_CALLED", "Findings", "Kind", "Refusal", "Unit", "find_units", "layer_of"]

Kind: TypeAlias = Literal["conv-bn", "linear-bn", "mlp", "conv", "linear"]
KINDS: tuple[Kind, ...] = ("conv-bn", "linear-bn", "mlp", "conv", "linear")

NOT_CALLED = "the example does not call it; if its parent reads its weight directly, a branch would have no effect"

_PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@dataclass(frozen=True)
class Unit:
    """A layer that can take a branch.

    Attributes:
        name: Module name of the layer.
        kind: "conv-bn" or "linear-bn": with the batch norm that alone consumes its output; "mlp": linear layer of
            an MLP behind a layer norm; "conv" or "linear": gated by the norms of its own rows.
        norm: Module name of the batch norm to fold or of the layer norm to read; None if there is none.
        side: Whether the gate acts on the output channels or on the input channels.
        note: Why the batch norm behind it cannot be folded, if there is one.
    """

    name: str
    kind: Kind
    norm: str | None = None
    side: Side = "out"
    note: str = ""


@dataclass(frozen=True)
class Refusal:
    """A layer that cannot take a branch, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Findings:
    """All layers of a network, in the order in which they run; those that did not run come last."""

    units: tuple[Unit, ...]
    refusals: tuple[Refusal, ...]


def find_units(model: nn.Module, example: Example) -> Findings:
    """Find every layer that can take a branch, by running the network once.

    Args:
        model: Network in eval mode, with or without folded layers; it is not changed.
        example: What the network accepts.

    Raises:
        InlayError: If the network does not accept the example.
    """
    calls = trace(model, example)
    modules = dict(model.named_modules())
    order = list(dict.fromkeys(call.name for call in calls if is_layer(modules[call.name])))
    refusals = _refusals(modules, order)
    refused = {refusal.name for refusal in refusals}
    pairs, notes = _pairs(modules, calls, refused)
    folded = {name for name in order if isinstance(modules[name], Folded)}
    gates = _mlp_gates(modules, calls, refused | pairs.keys() | folded)
    units = []
    for name in (name for name in order if name not in refused):
        kind: Literal["conv", "linear"] = "linear" if isinstance(modules[name], nn.Linear) else "conv"
        if name in folded or name in pairs:
            units.append(Unit(name, "conv-bn" if kind == "conv" else "linear-bn", pairs.get(name)))
        else:
            units.append(replace(gates.get(name, Unit(name, kind)), note=notes.get(name, "")))
    return Findings(tuple(units), tuple(refusals))


def _refusals(modules: dict[str, nn.Module], order: list[str]) -> list[Refusal]:
    owners = defaultdict(list)
    for name, module in modules.items():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)].append(name)
    found = [(name, _why_not(modules[name], owners)) for name in order]
    idle = [name for name, module in modules.items() if is_layer(module) and name not in order]
    return [Refusal(name, reason) for name, reason in found if reason] + [Refusal(name, NOT_CALLED) for name in idle]


def _why_not(layer: nn.Module, owners: dict[int, list[str]]) -> str:
    """Return why a layer cannot take a branch, or nothing."""
    kind = type(layer).__name__
    plain = next((plain for plain in _PLAIN if isinstance(layer, plain)), None)
    if plain is None:
        return f"a {kind} is not a convolution or linear layer that merges"
    if _overrides(layer, ("forward", "_conv_forward"), (plain,)):
        return f"this {kind} has a forward pass of its own"
    if hasattr(layer, "parametrizations"):
        return "its weight is parametrized; remove the parametrization first"
    if _has_hooks(layer):
        return "it has forward hooks, which may change its output; remove them first"
    shared = sorted({name for parameter in layer.parameters() for name in owners[id(parameter)]})
    if len(shared) > 1:
        return f"its weights are shared by {' and '.join(shared)}"
    if not layer.get_parameter("weight").is_floating_point():
        return "its weight is not a floating tensor"
    return ""


def _overrides(module: nn.Module, methods: Sequence[str], known: Sequence[type[nn.Module]]) -> bool:
    """Say whether a module, or its class, has other methods than all of the known classes, or another call."""
    replaced = any(method in vars(module) for method in methods)
    derived = any(
        all(getattr(type(module), method, None) is not getattr(kind, method, None) for kind in known)
        for method in methods
    )
    return replaced or derived or type(module).__call__ is not nn.Module.__call__


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _pairs(
    modules: dict[str, nn.Module], calls: list[Call], refused: set[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Pair each layer with the batch norm that alone consumes its output, each time it is called.

    Returns:
        Norm by layer, and for each layer in front of a batch norm that cannot be folded the reason.
    """
    readers: dict[str, set[str]] = defaultdict(set)
    reader_of = {call.reads_output: call.name for call in calls if is_batch_norm(modules[call.name])}
    readings = Counter((call.reads_output, call.name) for call in calls)
    exposed = {call.name for call in calls if call.exposed}
    notes: dict[str, str] = {}
    for index, call in enumerate(calls):
        if call.name in refused or not is_layer(modules[call.name]) or isinstance(modules[call.name], Folded):
            continue
        norm = reader_of.get(index, "")
        readers[call.name].add(norm)
        if norm and (reason := _why_not_absorbing(call, layer_of(modules, call.name), norm, readings[index, norm])):
            notes[call.name] = reason
    for layer, norms in readers.items():
        if len(norms) > 1:
            notes[layer] = f"it is not always called in front of the same batch norm ({_names(norms)})"
        elif norms != {""} and layer not in notes:
            norm = next(iter(norms))
            notes[layer] = _why_not_folded(modules[norm], norm, norm in exposed)
    pairs = {layer: next(iter(norms)) for layer, norms in readers.items() if norms != {""} and not notes.get(layer)}
    # A batch norm goes only if everything that it is given comes from layers that take it along.
    for call in calls:
        if is_batch_norm(modules[call.name]) and call.name in pairs.values() and pairs.get(call.reads) != call.name:
            stuck = [layer for layer, norm in pairs.items() if norm == call.name]
            for layer in stuck:
                notes[layer] = f"its batch norm {call.name!r} is also given something else"
                del pairs[layer]
    return pairs, {layer: note for layer, note in notes.items() if note}


def _names(norms: Iterable[str]) -> str:
    return ", ".join(sorted(repr(norm) if norm else "none" for norm in norms))


def _why_not_absorbing(call: Call, layer: Layer, norm: str, readings: int) -> str:
    """Return why a layer, as it is called here, cannot absorb the batch norm that reads its output, or nothing."""
    if call.uses > readings:
        return f"its output is used by more than the batch norm {norm!r}"
    if call.uses < readings:
        return f"what else uses its output besides the batch norm {norm!r} cannot be seen"
    if call.dimensions != layer.weight.dim():
        return f"the batch norm {norm!r} normalises another dimension than its channels"
    if call.exposed:
        return "its weights are read outside of it"
    return ""


def _why_not_folded(norm: nn.Module, name: str, exposed: bool) -> str:
    """Return why a batch norm cannot be folded, or nothing."""
    assert isinstance(norm, _BatchNorm)
    with_activation = [
        kind for kind in type(norm).__mro__ if kind.__name__ == "BatchNormAct2d" and has_activation(norm)
    ]
    if _overrides(norm, ("forward",), (_BatchNorm, nn.SyncBatchNorm, *with_activation)):
        return f"its batch norm {name!r} is a {type(norm).__name__} with a forward pass of its own"
    if norm.running_mean is None or norm.running_var is None:
        return f"its batch norm {name!r} has no running statistics"
    if _has_hooks(norm):
        return f"its batch norm {name!r} has forward hooks"
    if exposed:
        return f"the weights or statistics of its batch norm {name!r} are read outside of it"
    return ""


def _mlp_gates(modules: dict[str, nn.Module], calls: list[Call], taken: set[str]) -> dict[str, Unit]:
    """Find the linear layers that form an MLP directly behind a layer norm.

    The first layer reads the output of the layer norm, alone; so do the two of a gated MLP. The second reads what was
    computed from all of them token by token, alone, and returns to the width of the layer norm.
    """
    times = Counter(call.name for call in calls)
    readers: dict[int, set[str]] = defaultdict(set)
    others = []
    for call in calls:
        layer = modules[call.name]
        if not isinstance(layer, nn.Linear) or call.name in taken or times[call.name] > 1:
            continue
        if not call.reads or not is_token_norm(modules[call.reads]):
            others.append(call)
        elif _scale_width(modules[call.reads]) == layer.in_features:
            readers[call.reads_output].add(call.name)
    norms = {frozenset(names): calls[index].name for index, names in readers.items() if calls[index].uses == len(names)}
    units: dict[str, Unit] = {}
    for first, norm in norms.items():
        second = [call.name for call in others if call.behind == first]
        if len(second) == 1 and _scale_width(modules[norm]) == layer_of(modules, second[0]).weight.shape[0]:
            units |= {name: Unit(name, "mlp", norm, "in") for name in first}
            units[second[0]] = Unit(second[0], "mlp", norm, "out")
    return units


def _scale_width(norm: nn.Module) -> int | None:
    """Return the width of the scale of a norm over the last dimension; None if it has no such scale."""
    weight = norm._parameters.get("weight")
    return weight.shape[0] if weight is not None and weight.dim() == 1 else None


def layer_of(modules: Mapping[str, nn.Module], name: str) -> Layer:
    """Return the convolution or linear layer of that name."""
    layer = modules[name]
    assert isinstance(layer, _PLAIN)
    return layer
