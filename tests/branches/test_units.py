import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from branch_networks import lively
from inlay.branches.comparison import difference, full_precision_outputs
from inlay.branches.fold import fold, fold_units
from inlay.branches.units import Findings, Unit, find_units
from inlay.errors import InlayError

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randn(2, 3, 6, 6, generator=GENERATOR)
OTHERS = torch.randn(3, 3, 6, 6, generator=GENERATOR)


class _Net(nn.Module):
    """Two convolutions and two norms, registered in an order that says nothing, run by a given function."""

    def __init__(self, run: Callable[[Any, Tensor], object], **parts: nn.Module) -> None:
        super().__init__()
        self.norm_b, self.norm_a = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.conv_b, self.conv_a = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = run
        lively(self).eval()

    def forward(self, images: Tensor) -> object:
        return self.run(self, images)


def _found(model: nn.Module, example: Tensor, other: Tensor | None = None) -> Findings:
    """Find the units of a network, and check that folding them is exact on images that were not traced."""
    findings = find_units(model, example)
    model = copy.deepcopy(model).double()
    images = (example if other is None else other).double()
    expected = full_precision_outputs(model, images, "example")
    actual = full_precision_outputs(fold_units(model, findings.units), images, "example")
    assert difference(expected, actual).relative <= 1e-10
    return findings


def _pairs(model: nn.Module, example: Tensor = IMAGES, other: Tensor | None = None) -> dict[str, str | None]:
    """Return the norm of each layer that was found with its batch norm."""
    return {unit.name: unit.norm for unit in _found(model, example, other).units if unit.kind.endswith("-bn")}


def _bare(model: nn.Module, name: str) -> str:
    """Return the note of a layer that was found without its batch norm."""
    unit = next(unit for unit in _found(model, IMAGES, OTHERS).units if unit.name == name)
    assert unit == Unit(name, "conv", note=unit.note)
    return unit.note


def _plain(m: Any, x: Tensor) -> Tensor:
    out: Tensor = m.norm_a(m.conv_a(x))
    return out


def test_units_follow_the_tensors_not_names_or_the_order_of_registration() -> None:
    net = _Net(lambda m, x: m.norm_a(m.conv_b(torch.relu(m.norm_b(m.conv_a(x))))))
    assert find_units(net, IMAGES).units == (
        Unit("conv_a", "conv-bn", "norm_b"),
        Unit("conv_b", "conv-bn", "norm_a"),
    )


def test_layer_and_norm_may_live_in_different_containers() -> None:
    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleDict({"one": nn.BatchNorm2d(4), "two": nn.BatchNorm2d(4)})
            self.convs = nn.ModuleList([nn.Conv2d(4, 4, 1), nn.Conv2d(3, 4, 1)])

        def forward(self, images: Tensor) -> Tensor:
            out: Tensor = self.norms["two"](self.convs[1](images))
            out = self.norms["one"](self.convs[0](F.max_pool2d(F.relu(out), 2)))
            return out

    assert _pairs(lively(Apart()).eval()) == {"convs.1": "norms.two", "convs.0": "norms.one"}


def test_what_passes_its_input_on_does_not_stand_between() -> None:
    net = _Net(lambda m, x: m.norm_a(m.drop(m.same(m.conv_a(x)))), drop=nn.Dropout(0.5), same=nn.Identity())
    assert _pairs(net) == {"conv_a": "norm_a"}


def test_a_module_with_two_names_is_one_unit() -> None:
    net = _Net(lambda m, x: m.norm_a(m.alias(x)))
    net.alias = net.conv_a
    findings = _found(net, IMAGES)
    assert [unit.name for unit in findings.units] == ["conv_a"]
    assert [refusal.name for refusal in findings.refusals] == ["conv_b"]


def test_a_wrapper_around_the_network_adds_to_the_names_alone() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Tensor) -> object:
            return self.module(*args)

    assert _pairs(Wrapper(_Net(_plain)).eval()) == {"module.conv_a": "module.norm_a"}


_CONVS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_NORMS: dict[int, Any] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "stride": 2, "groups": 2},
        {"kernel_size": 3, "groups": 4, "padding": "same"},
        {"kernel_size": 2, "dilation": 2, "padding": 1, "padding_mode": "reflect"},
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
        {"kernel_size": 1, "padding": 2, "padding_mode": "replicate"},
    ],
)
def test_convolutions_of_every_geometry_are_units(dimensions: int, bias: bool, options: dict[str, Any]) -> None:
    conv = _CONVS[dimensions](4, 8, bias=bias, **options)
    net = lively(nn.Sequential(conv, _NORMS[dimensions](8))).eval()
    draw = torch.Generator().manual_seed(1)
    example, other = (torch.randn(2, 4, *[5] * dimensions, generator=draw) for _ in range(2))
    assert _pairs(net, example, other) == {"0": "1"}


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_with_batch_norm_are_units(bias: bool) -> None:
    net = lively(nn.Sequential(nn.Linear(3, 4, bias=bias), nn.BatchNorm1d(4))).eval()
    draw = torch.Generator().manual_seed(1)
    findings = _found(net, torch.randn(2, 3, generator=draw), torch.randn(5, 3, generator=draw))
    assert findings.units == (Unit("0", "linear-bn", "1"),)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 3)], ids=["other size", "same size"])
def test_a_norm_over_another_dimension_than_the_channels_is_not_folded(shape: tuple[int, ...]) -> None:
    # A linear layer has its channels last, the norm takes them from dimension 1.
    net = lively(nn.Sequential(nn.Linear(shape[2], 3), nn.BatchNorm1d(3))).eval()
    (unit,) = _found(net, torch.randn(shape, generator=torch.Generator().manual_seed(1))).units
    assert unit == Unit("0", "linear", note="the batch norm '1' normalises another dimension than its channels")


def test_a_convolution_without_batch_dimension_is_not_folded() -> None:
    net = lively(nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(5))).eval()
    (unit,) = _found(net, torch.ones(3, 5)).units
    assert unit.note == "the batch norm '1' normalises another dimension than its channels"


_UNITS: dict[str, tuple[Callable[[Any, Tensor], object], dict[str, str]]] = {
    "called twice": (lambda m, x: m.norm_a(m.conv_a(m.norm_a(m.conv_a(x)))), {"conv_a": "norm_a"}),
    "shared norm": (
        lambda m, x: m.norm_a(m.conv_a(x)) + m.norm_a(m.conv_b(x)),
        {"conv_a": "norm_a", "conv_b": "norm_a"},
    ),
    "normed twice": (lambda m, x: (lambda y: m.norm_a(y) * m.norm_a(y))(m.conv_a(x)), {"conv_a": "norm_a"}),
    "norm behind a norm": (lambda m, x: m.norm_b(m.norm_a(m.conv_a(x))), {"conv_a": "norm_a"}),
    "shape is read": (lambda m, x: (lambda y: m.norm_a(y).reshape(y.shape[0], -1))(m.conv_a(x)), {"conv_a": "norm_a"}),
}


@pytest.mark.parametrize(("run", "pairs"), _UNITS.values(), ids=_UNITS)
def test_calls_that_fold_exactly_are_units(run: Callable[[Any, Tensor], object], pairs: dict[str, str]) -> None:
    assert _pairs(_Net(run), other=OTHERS) == pairs


def test_a_norm_without_scale_and_shift_is_folded() -> None:
    assert _pairs(_Net(_plain, norm_a=nn.BatchNorm2d(3, affine=False))) == {"conv_a": "norm_a"}


def test_a_synchronised_norm_is_folded() -> None:
    assert _pairs(_Net(_plain, norm_a=nn.SyncBatchNorm(3))) == {"conv_a": "norm_a"}


_NO_PAIRS: dict[str, Callable[[Any, Tensor], object]] = {
    "norm before": lambda m, x: m.conv_a(m.norm_a(x)),
    "relu between": lambda m, x: m.norm_a(torch.relu(m.conv_a(x))),
    "relu in place between": lambda m, x: m.norm_a(torch.relu_(m.conv_a(x))),
    "view between": lambda m, x: m.norm_a(m.conv_a(x).view(2, 3, 4, 9)),
    "turned in place": lambda m, x: m.norm_a(m.conv_a(x).transpose_(1, 2).transpose_(1, 2)),
    "functional norm": lambda m, x: F.batch_norm(m.conv_a(x), m.norm_a.running_mean, m.norm_a.running_var),
}


@pytest.mark.parametrize("run", _NO_PAIRS.values(), ids=_NO_PAIRS)
def test_norms_that_see_something_else_have_no_unit(run: Callable[[Any, Tensor], object]) -> None:
    assert _found(_Net(run), IMAGES).units == (Unit("conv_a", "conv"),)


def _with_raw(use: Callable[[Any, Tensor, Tensor], object]) -> Callable[[Any, Tensor], object]:
    """Run the convolution, its norm, and something with the outputs of both."""

    def run(m: Any, x: Tensor) -> object:
        raw = m.conv_a(x)
        return use(m, raw, m.norm_a(raw))

    return run


class _Opaque:
    def __init__(self, raw: Tensor) -> None:
        self.raw = raw


def _into_buffer(raw: Tensor, normed: Tensor) -> Tensor:
    buffer = torch.empty(2, *normed.shape, dtype=normed.dtype)
    buffer[0], buffer[1] = raw, normed
    return buffer


def _kept(m: Any, raw: Tensor, normed: Tensor) -> Tensor:
    m.latest = raw
    return normed


_RAW_USES: dict[str, Callable[[Any, Tensor, Tensor], object]] = {
    "sum": lambda m, raw, normed: normed + raw,
    "concatenation": lambda m, raw, normed: torch.cat([normed, raw]),
    "second module": lambda m, raw, normed: normed + m.conv_b(raw),
    "two norms": lambda m, raw, normed: normed + m.norm_b(raw),
    "returned alone": lambda m, raw, normed: raw,
    "returned in a list": lambda m, raw, normed: [normed, {"raw": [raw]}],
    "hidden in an object": lambda m, raw, normed: (normed, _Opaque(raw)),
    "kept for later": _kept,
    "changed in place behind the norm": lambda m, raw, normed: normed * raw.relu_(),
    "written into a buffer": lambda m, raw, normed: _into_buffer(raw, normed),
    "a number of it": lambda m, raw, normed: normed * raw.tolist()[0][0][0][0],
}


@pytest.mark.parametrize("use", _RAW_USES.values(), ids=_RAW_USES)
def test_an_output_used_raw_as_well_is_not_folded(use: Callable[[Any, Tensor, Tensor], object]) -> None:
    net = _Net(_with_raw(use))
    findings = find_units(net, IMAGES)
    unit = next(unit for unit in findings.units if unit.name == "conv_a")
    assert (unit.kind, unit.norm) == ("conv", None)
    assert unit.note in [f"its output is used by more than the batch norm 'norm_{letter}'" for letter in "ab"]


def _in_a_thread(m: Any, x: Tensor) -> Tensor:
    found: list[Tensor] = []

    def run() -> None:
        raw = m.conv_a(x)
        found.append(m.norm_a(raw) + 0 * raw)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


_NOTES: dict[str, tuple[Callable[[Any, Tensor], object], str]] = {
    "different norms": (
        lambda m, x: m.norm_a(m.conv_a(x)) + m.norm_b(m.conv_a(x)),
        "it is not always called in front of the same batch norm ('norm_a', 'norm_b')",
    ),
    "once without norm": (
        lambda m, x: m.norm_a(m.conv_a(x)) + m.conv_a(x + 1),
        "it is not always called in front of the same batch norm ('norm_a', none)",
    ),
    "norm given something else first": (
        lambda m, x: m.norm_a(m.conv_a(m.norm_a(x))),
        "its batch norm 'norm_a' is also given something else",
    ),
    "norm given something else later": (
        lambda m, x: m.norm_a(torch.relu(m.norm_a(m.conv_a(x)))),
        "its batch norm 'norm_a' is also given something else",
    ),
    "norm shared with an unfit layer": (
        lambda m, x: m.norm_a(m.conv_a(x)) + m.norm_a(m.conv_b(x)) + m.conv_b(x),
        "its batch norm 'norm_a' is also given something else",
    ),
    "in another thread": (
        _in_a_thread,
        "what else uses its output besides the batch norm 'norm_a' cannot be seen",
    ),
    "weight read outside": (
        lambda m, x: m.norm_a(m.conv_a(x)) + F.conv2d(x, m.conv_a.weight) * 0,
        "its weights are read outside of it",
    ),
    "statistics read outside": (
        lambda m, x: m.norm_a(m.conv_a(x)) + m.norm_a.running_var.sum() * 0,
        "the weights or statistics of its batch norm 'norm_a' are read outside of it",
    ),
}


@pytest.mark.parametrize(("run", "note"), _NOTES.values(), ids=_NOTES)
def test_layers_that_cannot_be_folded_say_why(run: Callable[[Any, Tensor], object], note: str) -> None:
    assert _bare(_Net(run), "conv_a") == note


def test_none_of_the_layers_of_a_shared_norm_pairs_if_it_is_given_something_else() -> None:
    net = _Net(lambda m, x: m.norm_a(m.conv_a(x)) + m.norm_a(m.conv_b(x)) + m.norm_a(x))
    assert {_bare(net, name) for name in ("conv_a", "conv_b")} == {
        "its batch norm 'norm_a' is also given something else"
    }


def test_folded_layers_are_units_again() -> None:
    net = _Net(lambda m, x: m.norm_b(m.norm_a(m.conv_a(x))))
    folded = fold(net, IMAGES)
    assert find_units(folded, IMAGES).units == (Unit("conv_a", "conv-bn"),)


def test_a_failing_example_is_one_sentence() -> None:
    with pytest.raises(InlayError, match=r"^The network fails on the example \(float32 \[2, 5, 6, 6\]\)[^\n]*\.$"):
        find_units(_Net(_plain), torch.zeros(2, 5, 6, 6))
