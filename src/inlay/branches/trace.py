"""What one forward pass does with the tensors between its layers."""

import gc
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from inlay.branches.example import Example, run, tensors_in

__all__ = ["Call", "Trace", "is_batch_norm", "is_layer", "is_token_norm", "trace"]

# What mixes positions or tokens: a value behind one of these is no longer "the activation of" the layer before it.
_MIXING = frozenset(
    {"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "einsum", "softmax"}
    | {"scaled_dot_product_attention", "multi_head_attention_forward", "conv1d", "conv2d", "conv3d", "convolution"}
    | {"cumsum"}
)
# What asks a tensor for shape, type or place alone. Everything else that is given a tensor may read its values.
_FACTS = frozenset(
    {"size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size", "get_device"}
    | {"is_floating_point", "is_complex", "is_signed", "is_contiguous", "is_same_size", "is_inference"}
    | {"__len__", "__hash__", "new_empty", "new_zeros", "new_ones", "new_full", "new_tensor"}
    | {"empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"}
)


@dataclass
class Call:
    """One call of a module, in the order of the pass.

    Attributes:
        name: Module name.
        reads: Name of the module whose output is the input, unchanged; "" if there is none.
        reads_output: Which output that is, as an index into the calls; -1 if there is none.
        behind: Names of the linear layers from which the input was computed token by token.
        uses: How often the output was used; being alive after the pass is a use.
        dimensions: Number of dimensions of the output.
        exposed: Whether the weights or statistics of the module are read outside of its calls.
    """

    name: str
    reads: str
    reads_output: int
    behind: frozenset[str]
    uses: int = 0
    dimensions: int = 0
    exposed: bool = False


def is_layer(module: nn.Module) -> bool:
    """Say whether a module is a convolution or a linear layer of torch, or derived from one."""
    return isinstance(module, (_ConvNd, nn.Linear))


def is_batch_norm(module: nn.Module) -> bool:
    """Say whether a module is a batch norm of torch, or derived from one."""
    return isinstance(module, _BatchNorm)


def is_token_norm(module: nn.Module) -> bool:
    """Say whether a module is a norm over the last dimensions of each token, or derived from one."""
    return isinstance(module, (nn.LayerNorm, nn.RMSNorm))


class Trace(TorchFunctionMode):
    """Records calls of layers and norms, who reads their outputs, and how often.

    Outputs are kept alive and told apart by identity together with their version: a tensor that was changed
    in place is no longer the output of its module.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._running: list[str] = []
        self._owners: dict[int, set[str]] = defaultdict(set)
        self._exposed: set[str] = set()
        self._uses: Counter[int] = Counter()
        self._outputs: dict[int, tuple[int, Tensor, int]] = {}
        self._behind: dict[int, tuple[frozenset[str], Tensor]] = {}
        self._leading: dict[str, torch.Size] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = list(tensors_in((args, kwargs)))
        versions = {id(tensor): _version(tensor) for tensor in given}
        result = func(*args, **kwargs)
        made = list(tensors_in(result))
        # A cast to the dtype that a tensor has gives the same one: no use.
        passed_on = {id(tensor) for tensor in made if versions.get(id(tensor)) == _version(tensor)}
        name = _name(func)
        if name not in _FACTS and not (name == "__get__" and not made):
            self._count_uses([tensor for tensor in given if id(tensor) not in passed_on])
        self._follow(given, [tensor for tensor in made if id(tensor) not in passed_on], mixing=name in _MIXING)
        return result

    def own(self, module_name: str, module: nn.Module) -> None:
        """Remember whose the parameters and buffers of a module are."""
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            self._owners[id(tensor)].add(module_name)

    def enter(self, module_name: str, inputs: object) -> None:
        """Record that a module is called."""
        first = next(tensors_in(inputs), None)
        index, output, version = self._outputs.get(id(first), (-1, first, -1))
        unchanged = index >= 0 and output is not None and _version(output) == version
        behind = self._behind.get(id(first), (frozenset[str](), None))[0]
        reads = self.calls[index].name if unchanged else ""
        self.calls.append(Call(module_name, reads, index if unchanged else -1, behind))
        self._running.append(module_name)

    def leave(self, module_name: str, output: object, *, follow: bool) -> None:
        """Record what a module returned; its activation is followed if asked for."""
        self._running.remove(module_name)
        # Without a version (in inference mode) a change in place could not be told: no output of the module.
        if not isinstance(output, Tensor) or (version := _version(output)) is None:
            return
        index = max(position for position, call in enumerate(self.calls) if call.name == module_name)
        self._outputs[id(output)] = (index, output, version)
        self.calls[index].dimensions = output.dim()
        if follow:
            self._behind[id(output)] = (frozenset({module_name}), output)
            self._leading[module_name] = output.shape[:-1]

    def finish(self, returned: object) -> None:
        """Give each call its number of uses, while what the network returned is still alive."""
        handed_out = {id(tensor) for tensor in tensors_in(returned)}
        for key, (index, _, _) in self._outputs.items():
            self.calls[index].uses = self._uses[key] + (key in handed_out)
        for call in self.calls:
            call.exposed = call.name in self._exposed
        kept = {i: weakref.ref(output) for key, (i, output, _) in self._outputs.items() if key not in handed_out}
        self._outputs.clear()
        self._behind.clear()
        if any(reference() is not None for reference in kept.values()):
            gc.collect()
        # Whoever keeps an output may read it later: an object that was returned, an attribute, a closure.
        for index, reference in kept.items():
            self.calls[index].uses += reference() is not None

    def _count_uses(self, tensors: list[Tensor]) -> None:
        found = {id(tensor) for tensor in tensors}
        # Only outputs that are kept alive count: the identity of a dead tensor can come back as another's.
        self._uses.update(found & self._outputs.keys())
        for owners in (self._owners[key] for key in found & self._owners.keys()):
            if owners.isdisjoint(self._running):
                self._exposed |= owners

    def _follow(self, given: list[Tensor], made: list[Tensor], *, mixing: bool) -> None:
        known = [self._behind[id(tensor)][0] for tensor in given if id(tensor) in self._behind]
        behind = frozenset[str]() if mixing else frozenset[str]().union(*known)
        for tensor in made:
            self._behind.pop(id(tensor), None)
            same_tokens = frozenset(name for name in behind if self._leading[name] == tensor.shape[:-1])
            if same_tokens:
                self._behind[id(tensor)] = (same_tokens, tensor)


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Brings kernels to the trace that no Python function calls, such as those of scripted functions."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # Called from here, they pass the trace, unless it is just running the function that calls them.
        return func(*args, **(kwargs or {}))


def trace(model: nn.Module, example: Example) -> list[Call]:
    """Run the example once and return the calls of all layers and norms, in order.

    Args:
        model: Network in eval mode; it is as before afterwards.
        example: What the network accepts.

    Raises:
        InlayError: If the network does not accept the example.
    """
    record = Trace()
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    handles = []
    for name, module in model.named_modules():
        if is_layer(module) or is_batch_norm(module) or is_token_norm(module):
            record.own(name, module)
            handles.append(module.register_forward_pre_hook(_entering(record, name), prepend=True, with_kwargs=True))
            handles.append(module.register_forward_hook(_leaving(record, name), always_call=False))
    try:
        # A network may switch gradients on; their graph would keep every output alive.
        for parameter in learning:
            parameter.requires_grad_(False)
        with torch.inference_mode(False), torch.no_grad(), _Kernels(), record:  # type: ignore[no-untyped-call]
            returned = run(model, example, "example")
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
        for handle in handles:
            handle.remove()
    record.finish(returned)
    return record.calls


def _name(func: Callable[..., Any]) -> str:
    """Return the name of a function, or of an operator without its overload."""
    return str(getattr(func, "__name__", "")).partition(".")[0]


def _version(tensor: Tensor) -> int | None:
    """Return how often a tensor was changed in place; None if it does not count."""
    return None if tensor.is_inference() else tensor._version


def _entering(record: Trace, name: str) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
        record.enter(name, (args, kwargs))

    return hook


def _leaving(record: Trace, name: str) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        record.leave(name, output, follow=isinstance(module, nn.Linear))

    return hook
