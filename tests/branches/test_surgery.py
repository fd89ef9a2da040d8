import torch
from torch import Tensor, nn

from inlay.branches.surgery import replace_modules


class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.again = self.first
        self.rest = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = self.rest(self.first(values))
        return out


def test_a_module_is_replaced_under_every_name() -> None:
    network = _Shared()
    untouched = network.rest[1]
    replace_modules(network, {"first": nn.Identity(), "rest.0": nn.Identity()})
    assert isinstance(network.first, nn.Identity)
    assert network.again is network.first
    assert network.rest[1] is untouched
    assert torch.equal(network(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
