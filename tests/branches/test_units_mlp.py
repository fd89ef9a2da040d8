from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from inlay.branches.fold import fold
from inlay.branches.units import Unit, find_units

TOKENS = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
MLP = {"first": ("norm", "in"), "second": ("norm", "out")}


class _Block(nn.Module):
    """A norm of width 4 and some layers, run by a given function."""

    def __init__(self, run: Callable[[Any, Tensor], object], **parts: nn.Module) -> None:
        super().__init__()
        self.norm, self.second, self.first = nn.LayerNorm(4), nn.Linear(8, 4), nn.Linear(4, 8)
        self.drop = nn.Dropout(0.5)
        for name, part in parts.items():
            self.add_module(name, part)
        self.run = run
        self.eval()

    def forward(self, tokens: Tensor) -> object:
        return self.run(self, tokens)


def _mlps(run: Callable[[Any, Tensor], object], example: Tensor = TOKENS, **parts: nn.Module) -> dict[str, Any]:
    """Return norm and side of each layer of an MLP; all other layers must be gated by their rows."""
    units = find_units(_Block(run, **parts), example).units
    others = [unit for unit in units if unit.kind != "mlp"]
    assert others == [Unit(unit.name, "linear") for unit in others]
    return {unit.name: (unit.norm, unit.side) for unit in units if unit.kind == "mlp"}


def _plain(m: Any, x: Tensor) -> Tensor:
    out: Tensor = x + m.second(F.gelu(m.first(m.norm(x))))
    return out


def _halves(h: Tensor) -> Tensor:
    gate, values = h.chunk(2, dim=-1)
    return F.silu(gate) * values


_MLPS: dict[str, Callable[[Any, Tensor], object]] = {
    "functional": _plain,
    "in place": lambda m, x: m.second(nn.ReLU(inplace=True)(m.first(m.norm(x)))),
    "dropouts": lambda m, x: x + m.drop(m.second(m.drop(F.gelu(m.first(m.drop(m.norm(x))))))),
    "activation of several steps": lambda m, x: m.second((lambda h: torch.sigmoid(1.7 * h) * h)(m.first(m.norm(x)))),
    "no activation": lambda m, x: m.second(m.first(m.norm(x))),
}


@pytest.mark.parametrize("run", _MLPS.values(), ids=_MLPS)
def test_an_mlp_behind_a_layer_norm_is_found(run: Callable[[Any, Tensor], object]) -> None:
    assert _mlps(run) == MLP


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 3, 4)], ids=["vectors", "channels last"])
def test_tokens_may_have_any_shape(shape: tuple[int, ...]) -> None:
    assert _mlps(_plain, torch.ones(shape)) == MLP


def test_a_root_mean_square_norm_gates_as_well() -> None:
    assert _mlps(_plain, norm=nn.RMSNorm(4)) == MLP


def test_a_gated_mlp_of_one_layer_and_halves_is_found() -> None:
    assert _mlps(lambda m, x: m.second(_halves(m.first(m.norm(x)))), second=nn.Linear(4, 4)) == MLP


def _two_firsts(m: Any, x: Tensor) -> Tensor:
    normed = m.norm(x)
    out: Tensor = m.second(F.silu(m.first(normed)) * m.values(normed))
    return out


def test_a_gated_mlp_of_two_layers_is_found() -> None:
    assert _mlps(_two_firsts, values=nn.Linear(4, 8)) == MLP | {"values": ("norm", "in")}


def test_two_mlps_have_each_their_norm() -> None:
    net = nn.Sequential(
        *(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)),
        *(nn.LayerNorm(4), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)),
    )
    units = [(unit.name, unit.kind, unit.norm, unit.side) for unit in find_units(net.eval(), TOKENS).units]
    assert units == [
        ("1", "mlp", "0", "in"),
        ("3", "mlp", "0", "out"),
        ("5", "mlp", "4", "in"),
        ("7", "mlp", "4", "out"),
    ]


def _fused_attention(m: Any, x: Tensor) -> Tensor:
    batch, tokens, width = x.shape
    packed = m.first(m.norm(x)).reshape(batch, tokens, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(*packed.unbind(0)).transpose(1, 2).reshape(batch, tokens, width)
    out: Tensor = x + m.second(mixed)
    return out


def _attention_by_hand(m: Any, x: Tensor) -> Tensor:
    query, key, value = m.first(m.norm(x)).chunk(3, dim=-1)
    out: Tensor = x + m.second((query @ key.transpose(1, 2)).softmax(-1) @ value)
    return out


def _attention_by_einsum(m: Any, x: Tensor) -> Tensor:
    query, key, value = m.first(m.norm(x)).split(4, dim=-1)
    weights = torch.einsum("bic,bjc->bij", query, key).exp()
    out: Tensor = x + m.second(torch.einsum("bij,bjc->bic", weights / weights.sum(-1, keepdim=True), value))
    return out


@pytest.mark.parametrize("run", [_fused_attention, _attention_by_hand, _attention_by_einsum])
def test_attention_with_a_fused_projection_is_no_mlp(run: Callable[[Any, Tensor], object]) -> None:
    assert _mlps(run, first=nn.Linear(4, 12), second=nn.Linear(4, 4)) == {}


def _separate_attention(m: Any, x: Tensor) -> Tensor:
    normed = m.norm(x)
    mixed = F.scaled_dot_product_attention(m.first(normed), m.key(normed), m.value(normed))
    out: Tensor = x + m.second(mixed * torch.sigmoid(m.gate(normed)))
    return out


def test_attention_with_a_gate_of_its_own_is_no_mlp() -> None:
    parts = {name: nn.Linear(4, 8) for name in ("key", "value", "gate")}
    assert _mlps(_separate_attention, TOKENS, **parts) == {}


def _post_norm(m: Any, x: Tensor) -> Tensor:
    normed = m.norm(x)
    out: Tensor = normed + m.second(F.gelu(m.first(normed)))
    return out


_NO_MLPS: dict[str, Callable[[Any, Tensor], object]] = {
    "post-norm": _post_norm,
    "norm returned": lambda m, x: (lambda normed: (m.second(F.gelu(m.first(normed))), {"normed": normed}))(m.norm(x)),
    "norm changed in place": lambda m, x: m.second(F.gelu(m.first(m.norm(x).mul_(2)))),
    "something between norm and MLP": lambda m, x: m.second(F.gelu(m.first(torch.tanh(m.norm(x))))),
    "no norm": lambda m, x: m.second(F.gelu(m.first(x))),
    "first layer alone": lambda m, x: F.gelu(m.first(m.norm(x))),
    "tokens mixed": lambda m, x: m.second(m.first(m.norm(x)).softmax(1)),
    "tokens averaged": lambda m, x: m.second(m.first(m.norm(x)).mean(1)),
    "called twice": lambda m, x: _plain(m, _plain(m, x)),
    "first called elsewhere": lambda m, x: m.second(F.gelu(m.first(m.norm(x)))).mean() + m.first(x),
    "second called twice": lambda m, x: (lambda h: m.second(F.gelu(h)) + m.second(h))(m.first(m.norm(x))),
}


@pytest.mark.parametrize("run", _NO_MLPS.values(), ids=_NO_MLPS)
def test_what_is_not_directly_a_norm_and_an_mlp_is_none(run: Callable[[Any, Tensor], object]) -> None:
    assert _mlps(run) == {}


def test_an_mlp_that_does_not_return_to_the_width_is_none() -> None:
    assert _mlps(lambda m, x: m.second(F.gelu(m.first(m.norm(x)))), second=nn.Linear(8, 3)) == {}


def test_a_hidden_activation_that_two_layers_read_is_no_mlp() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        hidden = F.gelu(m.first(m.norm(x)))
        out: Tensor = m.second(hidden) + m.other(hidden)
        return out

    assert _mlps(run, other=nn.Linear(8, 4)) == {}


@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm(4, elementwise_affine=False),
        nn.RMSNorm(4, elementwise_affine=False),
        nn.LayerNorm((5, 4)),
        weight_norm(nn.LayerNorm(4), dim=0),
    ],
    ids=["no scale", "no scale of a root mean square", "scale over tokens", "scale that is computed"],
)
def test_a_norm_without_a_scale_per_channel_gates_no_mlp(norm: nn.Module) -> None:
    assert _mlps(_plain, norm=norm) == {}


def test_a_norm_over_other_channels_than_the_layer_reads_gates_no_mlp() -> None:
    class ChannelsFirst(nn.LayerNorm):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input.mT).mT

    def run(m: Any, x: Tensor) -> object:
        return m.second(F.gelu(m.first(m.norm(x))))

    assert _mlps(run, torch.ones(2, 4, 6), norm=ChannelsFirst(4), first=nn.Linear(6, 8)) == {}


def test_an_mlp_with_a_batch_norm_inside_is_found_by_the_batch_norm() -> None:
    net = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)).eval()
    tokens = torch.ones(3, 4)
    assert find_units(net, tokens).units == (Unit("1", "linear-bn", "2"), Unit("4", "linear"))
    assert find_units(fold(net, tokens), tokens).units == (Unit("1", "linear-bn"), Unit("4", "linear"))
