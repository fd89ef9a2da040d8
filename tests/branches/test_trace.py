import copy
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from inlay.branches.trace import Call, is_batch_norm, is_layer, is_token_norm, trace
from inlay.errors import InlayError

EXAMPLE = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))


class _Net(nn.Module):
    """A convolution and a batch norm, run by a given function."""

    def __init__(self, run: Callable[[Any, Tensor], object]) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)
        self.run = run
        self.eval()

    def forward(self, images: Tensor) -> object:
        return self.run(self, images)


class _Mlp(nn.Module):
    """Two linear layers and what happens between them."""

    def __init__(self, between: Callable[[Tensor], Tensor], hidden: int = 8) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(hidden, 4)
        self.between = between
        self.eval()

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.second(self.between(self.first(self.norm(tokens))))
        return out


def _calls(run: Callable[[Any, Tensor], object]) -> dict[str, Call]:
    return {call.name: call for call in trace(_Net(run), EXAMPLE)}


def test_layers_and_norms_are_told_apart() -> None:
    modules = [nn.Conv1d(1, 1, 1), nn.ConvTranspose2d(1, 1, 1), nn.Linear(1, 1), nn.SyncBatchNorm(1), nn.RMSNorm(1)]
    modules += [nn.LayerNorm(1), nn.InstanceNorm2d(1), nn.ReLU(), nn.Embedding(1, 1)]
    assert [is_layer(module) for module in modules] == [True] * 3 + [False] * 6
    assert [is_batch_norm(module) for module in modules] == [False] * 3 + [True] + [False] * 5
    assert [is_token_norm(module) for module in modules] == [False] * 4 + [True, True] + [False] * 3


def test_calls_come_in_the_order_of_the_pass() -> None:
    calls = trace(_Net(lambda m, x: m.norm(m.conv(m.conv(torch.relu(m.norm(m.conv(x))))))), EXAMPLE)
    assert [call.name for call in calls] == ["conv", "norm", "conv", "conv", "norm"]
    assert [call.reads for call in calls] == ["", "conv", "", "conv", "conv"]
    assert [call.reads_output for call in calls] == [-1, 0, -1, 2, 3]
    assert [call.uses for call in calls] == [1, 1, 1, 1, 1]
    assert {call.dimensions for call in calls} == {4}


_PASSED_ON: dict[str, Callable[[Any, Tensor], object]] = {
    "identity": lambda m, x: m.norm(nn.Identity()(m.conv(x))),
    "dropout": lambda m, x: m.norm(F.dropout(m.conv(x), training=False)),
    "dropout in place": lambda m, x: m.norm(F.dropout(m.conv(x), training=False, inplace=True)),
    "cast to the same type": lambda m, x: m.norm(m.conv(x).contiguous().to(torch.float32)),
    "keywords": lambda m, x: m.norm(input=m.conv(input=x)),
    "checkpoint": lambda m, x: checkpoint(lambda images: m.norm(m.conv(images)), x, use_reentrant=False),
    "reentrant checkpoint": lambda m, x: m.norm(checkpoint(m.conv, x, use_reentrant=True)),
    "data parallel": lambda m, x: nn.DataParallel(nn.Sequential(m.conv, m.norm))(x),
    "no grad": lambda m, x: torch.no_grad()(lambda: m.norm(m.conv(x)))(),
    "gradients switched on": lambda m, x: torch.enable_grad()(lambda: m.norm(m.conv(x)))(),
    "autocast": lambda m, x: torch.autocast("cpu", torch.bfloat16)(lambda: m.norm(m.conv(x)))(),
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("run", _PASSED_ON.values(), ids=_PASSED_ON)
def test_an_output_that_is_passed_on_is_still_the_output(run: Callable[[Any, Tensor], object]) -> None:
    calls = _calls(run)
    assert calls["norm"].reads == "conv"
    assert calls["conv"].uses == 1


@pytest.mark.parametrize(
    "between",
    [
        *(torch.relu, torch.relu_, torch.clone, torch.detach, lambda y: y.mul_(1), lambda y: y.transpose_(2, 3)),
        *(lambda y: y[:], lambda y: y.view(2, 3, 6, 6), lambda y: y.double().float()),
    ],
)
def test_a_changed_tensor_or_another_view_is_not_the_output(between: Callable[[Tensor], Tensor]) -> None:
    assert _calls(lambda m, x: m.norm(between(m.conv(x))))["norm"].reads == ""


def test_a_change_through_a_view_is_seen() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        y = m.conv(x)
        y[:, 0] = 0
        normed: Tensor = m.norm(y)
        return normed

    assert _calls(run)["norm"].reads == ""


def _facts(m: Any, x: Tensor) -> Tensor:
    y: Tensor = m.conv(x)
    assert y.ndim == y.dim() == len(y.shape) and len(y) == y.size(0) and y.is_contiguous() and y.is_floating_point()
    buffer = torch.zeros_like(y) + y.new_ones(y.shape, device=y.device, dtype=y.dtype) * y.numel()
    normed: Tensor = m.norm(y)
    return normed + buffer if y.requires_grad else normed


def test_reading_shape_and_type_is_no_use() -> None:
    assert _calls(_facts)["conv"].uses == 1


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values * 2


class _Opaque:
    """Holds something where nobody looks."""

    def __init__(self, held: object) -> None:
        self.held = held


@dataclass
class _Output:
    features: Tensor
    raw: object


def _doubled(values: Tensor) -> Tensor:
    return values * 2


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    _script = torch.jit.script(_doubled)
_compiled = torch.compile(_doubled, backend="eager")


def _into_buffer(y: Tensor) -> Tensor:
    buffer = torch.zeros(2, 4, 6, 6)
    buffer[:, 1:] = y
    return buffer


_USES: dict[str, Callable[[Tensor], object]] = {
    "returned": lambda y: y,
    "nested": lambda y: [{"raw": (y,)}],
    "dataclass": lambda y: _Output(y[:0], y),
    "object": lambda y: _Opaque(y),
    "closure": lambda y: lambda: y,
    "generator": lambda y: (value for value in [y]),
    "sum": lambda y: y + 1,
    "concatenation": lambda y: torch.cat([y, y]),
    "in place": lambda y: F.relu_(y),
    "view": lambda y: y.view(-1)[0],
    "into a buffer": lambda y: _into_buffer(y),
    "item": lambda y: y.sum().item(),
    "float": lambda y: float(y[0, 0, 0, 0]),
    "list": lambda y: y.tolist(),
    "numpy": lambda y: y.numpy().sum(),
    "numpy function": lambda y: np.sum(np.asarray(y)),
    "equal": lambda y: torch.equal(y, y),
    "copy": lambda y: copy.copy(y),
    "rows": lambda y: list(y),
    "data": lambda y: y.data.mul_(2),
    "autograd function": lambda y: _Double.apply(y),  # type: ignore[no-untyped-call]
    "scripted function": lambda y: _script(y),
    "compiled function": lambda y: _compiled(y),
    "operator": lambda y: torch.ops.aten.mul(y, 2),
}


@pytest.mark.parametrize("use", _USES.values(), ids=_USES)
def test_every_other_use_is_counted(use: Callable[[Tensor], object]) -> None:
    def run(m: Any, x: Tensor) -> object:
        y = m.conv(x)
        return m.norm(y), use(y)

    assert _calls(run)["conv"].uses > 1


def test_an_output_that_the_network_keeps_for_later_is_used() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        m.latest = m.conv(x)
        normed: Tensor = m.norm(m.latest)
        return normed

    assert _calls(run)["conv"].uses == 2


def test_garbage_in_a_cycle_is_no_use() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        cycle: list[object] = [m.conv(x)]
        cycle.append(cycle)
        normed: Tensor = m.norm(cycle[0])
        return normed

    assert _calls(run)["conv"].uses == 1


def test_what_other_threads_do_is_not_counted() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        found: list[Tensor] = []
        thread = threading.Thread(target=lambda: found.append(m.norm(m.conv(x))))
        thread.start()
        thread.join()
        return found[0]

    calls = _calls(run)
    assert (calls["norm"].reads, calls["conv"].uses) == ("conv", 0)


def test_identities_of_dead_tensors_do_not_come_back() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        for _ in range(30):
            x = m.norm(m.conv(x))
            for scale in range(5):
                x = x * (scale > 10) + 1
        return x

    calls = trace(_Net(run), EXAMPLE)
    convs = [call for call in calls if call.name == "conv"]
    assert len(calls) == 60
    assert [call.uses for call in convs] == [1] * 30
    assert [call.reads_output for call in calls if call.name == "norm"] == list(range(0, 60, 2))


@pytest.mark.parametrize(
    ("run", "exposed"),
    [
        (lambda m, x: m.norm(F.conv2d(m.conv(x), m.conv.weight)), {"conv"}),
        (lambda m, x: m.norm(m.conv(x)) + m.norm.running_mean.view(-1, 1, 1), {"norm"}),
        (lambda m, x: m.norm(m.conv(x)) * m.conv.bias.sum() + m.norm.weight.sum(), {"conv", "norm"}),
        (lambda m, x: m.norm(m.conv(x.to(m.conv.weight.dtype) + m.norm.weight.new_zeros(1))), set()),
    ],
    ids=["weight", "statistics", "both", "type alone"],
)
def test_weights_that_are_read_outside_their_module_are_exposed(
    run: Callable[[Any, Tensor], object], exposed: set[str]
) -> None:
    assert {name for name, call in _calls(run).items() if call.exposed} == exposed


def test_a_parameter_of_two_norms_is_not_exposed_by_either() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)).eval()
    net[2].weight = net[1].weight
    assert not any(call.exposed for call in trace(net, EXAMPLE))


@pytest.mark.parametrize(
    "between",
    [
        F.gelu,
        F.relu_,
        lambda h: F.dropout(torch.sigmoid(h) * h * 2 + 1, training=False),
        lambda h: F.layer_norm(h, (8,)),
        lambda h: torch.cat([F.silu(h[..., :4]), h[..., 4:]], dim=-1),
        lambda h: h.double().float(),
    ],
)
def test_activations_are_followed_token_by_token(between: Callable[[Tensor], Tensor]) -> None:
    calls = {call.name: call for call in trace(_Mlp(between), TOKENS)}
    assert calls["second"].behind == {"first"}
    assert calls["first"].behind == frozenset()


def test_halves_of_an_activation_are_followed() -> None:
    calls = trace(_Mlp(lambda h: F.silu(h.chunk(2, dim=-1)[0]) * h.chunk(2, dim=-1)[1], hidden=4), TOKENS)
    assert calls[-1].behind == {"first"}


@pytest.mark.parametrize(
    "between",
    [
        lambda h: h @ torch.eye(8),
        lambda h: torch.softmax(h @ h.mT, dim=-1) @ h,
        lambda h: torch.einsum("bnc,bmc,bmd->bnd", h, h, h),
        lambda h: F.scaled_dot_product_attention(h, h, h),
        lambda h: torch.cumsum(h, dim=1),
        lambda h: F.linear(h, torch.eye(8)),
        lambda h: F.conv1d(h.mT, torch.ones(8, 8, 1)).mT,
        lambda h: torch.matmul(h, torch.eye(8), out=h),
        lambda h: h.mean(1),
    ],
    ids=["product", "attention", "einsum", "fused attention", "sum", "linear", "convolution", "into itself", "mean"],
)
def test_what_mixes_tokens_or_channels_is_not_followed(between: Callable[[Tensor], Tensor]) -> None:
    assert trace(_Mlp(between), TOKENS)[-1].behind == frozenset()


def test_an_activation_of_two_layers_is_behind_both() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.down = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, tokens: Tensor) -> Tensor:
            out: Tensor = self.down(F.silu(self.gate(tokens)) * self.up(tokens))
            return out

    assert trace(Gated().eval(), TOKENS)[-1].behind == {"gate", "up"}


def _hooks(net: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules())


@pytest.mark.parametrize("channels", [3, 5], ids=["accepted", "not accepted"])
def test_the_network_is_as_before_whatever_happens(channels: int) -> None:
    net = _Net(lambda m, x: m.norm(m.conv(x)))
    net.norm.requires_grad_(False)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    example = torch.ones(2, channels, 6, 6)
    if channels == 3:
        trace(net, example)
    else:
        with pytest.raises(
            InlayError, match=r"fails on the example \(float32 \[2, 5, 6, 6\]\); pass one that it accepts"
        ):
            trace(net, example)
    assert _hooks(net) == 0
    assert [parameter.requires_grad for parameter in net.parameters()] == [False, False, True, True]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_network_may_change_its_input_but_not_the_example() -> None:
    example = EXAMPLE.clone()
    trace(_Net(lambda m, x: m.norm(m.conv(x.relu_()))), example)
    assert torch.equal(example, EXAMPLE)


def test_inference_mode_around_the_caller_does_not_matter() -> None:
    net = _Net(lambda m, x: m.norm(m.conv(x)))
    with torch.inference_mode():
        calls = trace(net, torch.ones(2, 3, 6, 6))
    assert (calls[1].reads, calls[0].uses) == ("conv", 1)


def test_in_inference_mode_inside_the_network_no_output_is_known() -> None:
    # Its tensors do not count their changes, so one in place could not be told.
    calls = _calls(lambda m, x: torch.inference_mode()(lambda: m.norm(m.conv(x).mul_(2)))())
    assert calls["norm"].reads == ""
