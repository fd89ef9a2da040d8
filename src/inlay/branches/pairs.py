"""Finding the convolutions whose output is consumed by a batch norm."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from inlay.errors import InlayError

__all__ = ["Pair", "find_pairs"]


@dataclass(frozen=True)
class Pair:
    """Module names of a convolution and of the batch norm that consumes its output."""

    conv: str
    norm: str


class _Trace(TorchFunctionMode):
    """What one forward pass did with the outputs of convolutions.

    Outputs are kept alive and told apart by identity together with their version: a tensor that was changed
    in place is no longer the output of its convolution.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.uses: Counter[int] = Counter()
        self.pairs: list[tuple[Pair, Tensor]] = []
        self._outputs: dict[int, tuple[str, Tensor, int]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # Reading a shape or a dtype gives no tensor and is no use of the values.
        if any(True for _ in _tensors(result)):
            self.record_use((args, kwargs))
        return result

    def record_use(self, values: object) -> None:
        # Only outputs that are kept alive count: the identity of a dead tensor can come back as another's.
        self.uses.update({id(tensor) for tensor in _tensors(values)} & self._outputs.keys())

    def record_conv(self, name: str, output: Tensor) -> None:
        self.calls[name] += 1
        self._outputs[id(output)] = (name, output, output._version)

    def record_norm(self, name: str, images: Tensor) -> None:
        self.calls[name] += 1
        conv, output, version = self._outputs.get(id(images), ("", images, -1))
        if output._version == version:
            self.pairs.append((Pair(conv, name), output))


def find_pairs(model: nn.Module, example: Tensor) -> list[Pair]:
    """Find every Conv2d whose output is consumed by a BatchNorm2d, by running the network once.

    Args:
        model: Network in eval mode.
        example: A batch of images, [N, C, H, W].

    Returns:
        The pairs in the order in which they run.

    Raises:
        InlayError: If a pair cannot be replaced by one convolution.
    """
    trace = _Trace()
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            handles.append(module.register_forward_hook(_conv_hook(trace, name)))
        elif isinstance(module, nn.BatchNorm2d):
            handles.append(module.register_forward_pre_hook(_norm_hook(trace, name)))
    try:
        with torch.no_grad(), trace:
            returned: object = model(example)
    finally:
        for handle in handles:
            handle.remove()
    trace.record_use(returned)
    for pair, output in trace.pairs:
        _check_pair(model, pair, trace, uses=trace.uses[id(output)])
    return [pair for pair, _ in trace.pairs]


def _check_pair(model: nn.Module, pair: Pair, trace: _Trace, uses: int) -> None:
    conv, norm = model.get_submodule(pair.conv), model.get_submodule(pair.norm)
    for name, module, plain in ((pair.conv, conv, nn.Conv2d), (pair.norm, norm, nn.BatchNorm2d)):
        if type(module) is not plain:
            raise InlayError(
                f"Module {name!r} is a {type(module).__name__}, whose forward pass may differ from that of "
                f"torch.nn.{plain.__name__}; replace it by a plain torch.nn.{plain.__name__} before folding."
            )
        if trace.calls[name] > 1:
            raise InlayError(
                f"Module {name!r} is called {trace.calls[name]} times in one forward pass and cannot be "
                f"folded; give each call its own module."
            )
    if not isinstance(norm, nn.BatchNorm2d) or not norm.affine:
        raise InlayError(f"Batch norm {pair.norm!r} has no scale and shift; build it with affine=True.")
    if norm.running_mean is None or norm.running_var is None:
        raise InlayError(f"Batch norm {pair.norm!r} has no running statistics; build it with track_running_stats=True.")
    if uses > 1:
        raise InlayError(
            f"The output of {pair.conv!r} is used by more than its batch norm {pair.norm!r} and cannot be "
            f"folded; let the other uses read the output of {pair.norm!r} instead."
        )


def _conv_hook(trace: _Trace, name: str) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        trace.record_conv(name, output)

    return hook


def _norm_hook(trace: _Trace, name: str) -> Callable[[nn.Module, Any], None]:
    def hook(module: nn.Module, args: Any) -> None:
        trace.record_norm(name, args[0])

    return hook


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
