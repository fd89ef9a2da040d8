import pytest
import torch
from torch import Tensor, nn

from inlay.branches.surgery import copied, replace_modules
from inlay.errors import InlayError


class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.again = self.first
        self.rest = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.all = nn.ModuleList([self.rest])

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = self.rest(self.first(values))
        return out


class _Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = self.linear(values)
        self.kept = out
        return out


def test_a_module_is_replaced_under_every_name() -> None:
    network = _Shared()
    untouched = network.rest[1]
    replace_modules(network, {"first": nn.Identity(), "rest.0": nn.Identity()})
    assert isinstance(network.first, nn.Identity)
    assert network.again is network.first
    assert network.get_submodule("all.0.0") is network.rest[0]
    assert network.rest[1] is untouched
    assert torch.equal(network(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))


def test_a_module_can_be_replaced_by_one_inside_it() -> None:
    network = _Shared()
    inner = network.rest[0]
    replace_modules(network, {"rest": inner})
    assert network.rest is inner and network.all[0] is inner


def test_a_copy_shares_nothing() -> None:
    network = _Shared()
    twin = copied(network)
    assert isinstance(twin, _Shared) and twin.first is twin.again is not network.first
    with torch.no_grad():
        twin.first.weight.zero_()
    assert network.first.weight.abs().min() > 0


def test_a_network_that_keeps_its_last_outputs_is_refused_until_they_are_free() -> None:
    network = _Keeping()
    network(torch.ones(1, 2))
    with pytest.raises(InlayError, match=r"cannot be copied .* run it once under torch\.no_grad\(\)"):
        copied(network)
    with torch.no_grad():
        network(torch.ones(1, 2))
    assert isinstance(copied(network), _Keeping)
