from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from inlay.branches import attach, plan
from inlay.branches.checks import check_finite, check_network
from inlay.errors import InlayError

IMAGES = torch.ones(2, 3, 4, 4)
compiled: Any = torch.compile
traced: Any = torch.jit.trace


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.ReLU())).eval()


def _with(part: str, value: float) -> nn.Module:
    net = _net()
    net.state_dict(keep_vars=True)[part].data[0] = value
    return net


def _training() -> nn.Module:
    net = _net()
    net[2].train()
    return net


def _compiled_in_place() -> nn.Module:
    net = _net()
    net.compile(backend="eager")
    return net


def _meta() -> nn.Module:
    with torch.device("meta"):
        return _net()


COMPILED = "is compiled; pass what it was before torch.compile or torch.jit."
NOT_FINITE = "holds values that are not finite; load weights from before training diverged."
NO_VALUES = "Parameter '0.weight' has no values yet; run the network once or load its weights."

_REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "hybrid": (
        lambda: attach(_net(), IMAGES),
        "The network has branches already; merge them with inlay.branches.merge first.",
    ),
    "training": (lambda: _net().train(), "The network is in training mode; call model.eval() first."),
    "partly training": (_training, "The network is in training mode; call model.eval() first."),
    "nan": (lambda: _with("0.weight", torch.nan), f"Parameter '0.weight' {NOT_FINITE}"),
    "infinite": (lambda: _with("1.bias", torch.inf), f"Parameter '1.bias' {NOT_FINITE}"),
    "statistics": (
        lambda: _with("1.running_var", torch.nan),
        "Buffer '1.running_var' holds values that are not numbers; load weights from before training diverged.",
    ),
    "compiled": (lambda: compiled(_net(), backend="eager"), f"The network {COMPILED}"),
    "compiled part": (lambda: nn.Sequential(compiled(_net(), backend="eager")).eval(), f"Module '0' {COMPILED}"),
    "compiled in place": (_compiled_in_place, f"The network {COMPILED}"),
    "traced": (lambda: traced(_net(), IMAGES), f"The network {COMPILED}"),
    "parallel": (
        lambda: nn.DataParallel(_net()).eval(),
        "The network is wrapped in DataParallel; pass its .module, and wrap it later.",
    ),
    "lazy": (lambda: nn.Sequential(nn.LazyConv2d(4, 1)).eval(), NO_VALUES),
    "meta": (_meta, NO_VALUES),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.trace", "ignore:Lazy modules")
@pytest.mark.parametrize(("build", "message"), _REFUSED.values(), ids=_REFUSED)
def test_networks_that_are_not_fit_get_one_sentence(build: Callable[[], nn.Module], message: str) -> None:
    net = build()
    for refuse in (check_network, lambda network: plan(network, IMAGES), lambda network: attach(network, IMAGES)):
        with pytest.raises(InlayError) as caught:
            refuse(net)
        assert str(caught.value) == message


def test_a_fit_network_passes() -> None:
    net = _net()
    net.register_buffer("mask", torch.full((2, 2), -torch.inf))
    net.register_buffer("flags", torch.tensor([True, False]))
    check_network(net)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_a_traced_part_is_no_obstacle() -> None:
    net = nn.Sequential(_net(), traced(nn.Sequential(nn.ReLU()), IMAGES)).eval()
    check_network(net)
    assert [unit.name for unit in plan(net, IMAGES).units] == ["0.0"]


def test_the_remedy_is_the_callers() -> None:
    with pytest.raises(InlayError, match=r"^Parameter '0\.bias' holds values that are not finite; train again\.$"):
        check_finite(_with("0.bias", -torch.inf), "train again")
