import copy
import io
import pickle
from typing import Any

import torch
from torch import fx, nn

from inlay.branches.frozen import freeze, thaw


class _Odd(nn.Module):
    """A module with a state of its own for pickling, and a mode of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 1)
        self.cache: Any = "not for pickles"
        self.calls: list[bool] = []

    class Inner(nn.Module):
        """A class inside a class."""

    def train(self, mode: bool = True) -> "_Odd":
        self.calls.append(mode)
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"cache": None}


def _network() -> nn.Sequential:
    network = nn.Sequential(nn.BatchNorm2d(2), nn.Sequential(nn.Dropout(), nn.BatchNorm2d(2)))
    freeze(network[0])
    freeze(network[1])
    return network


def _pickled(network: nn.Module) -> nn.Module:
    twin: nn.Module = pickle.loads(pickle.dumps(network))
    return twin


def _saved(network: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    twin: nn.Module = torch.load(file, weights_only=False)
    return twin


def test_frozen_modules_stay_in_eval_and_pass_the_mode_on() -> None:
    network = _network()
    for twin in (network, copy.deepcopy(network), _pickled(network), _saved(network)):
        assert twin.train() is twin
        modes = [module.training for module in twin.modules()]
        assert modes == [True, False, False, True, True]
        twin.eval()
        assert not any(module.training for module in twin.modules())


def test_statistics_of_a_frozen_norm_do_not_move() -> None:
    network = _network().train()
    network(torch.ones(4, 2, 3, 3))
    assert torch.equal(network.state_dict()["0.running_mean"], torch.zeros(2))
    assert not torch.equal(network.state_dict()["1.1.running_mean"], torch.zeros(2))


def test_frozen_modules_keep_type_and_name_and_can_be_thawed() -> None:
    for network in (_network(), _pickled(_network())):
        norm = network.get_submodule("0")
        freeze(norm)
        assert isinstance(norm, nn.BatchNorm2d)
        assert type(norm).__name__ == "BatchNorm2d"
        thaw(network)
        assert type(norm) is nn.BatchNorm2d
        assert type(network.get_submodule("1")) is nn.Sequential
        assert all(module.training for module in network.train().modules())


def test_every_protocol_of_pickle_brings_the_values_back() -> None:
    network = _network()
    network.load_state_dict(network.state_dict() | {"0.weight": torch.tensor([3.0, 4.0])})
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        twin = pickle.loads(pickle.dumps(network, protocol))
        assert type(twin[0]) is type(network[0])
        assert torch.equal(twin.state_dict()["0.weight"], torch.tensor([3.0, 4.0]))


def test_modules_with_ways_of_their_own_keep_them() -> None:
    network = nn.Sequential(_Odd(), _Odd.Inner())
    for module in network:
        freeze(module)
    twin = _pickled(network.train())
    odd = twin[0]  # type: ignore[index]
    assert odd.cache is None
    assert not odd.training and odd.conv.training
    assert type(twin[1]) is type(network[1])  # type: ignore[index]
    thaw(twin)
    assert [type(module) for module in twin.children()] == [_Odd, _Odd.Inner]


def test_what_a_module_does_beside_setting_the_mode_is_not_done() -> None:
    network = nn.Sequential(_Odd())
    freeze(network[0])
    network.train().eval()
    assert network[0].calls == []
    thaw(network.train())
    network.train()
    assert network[0].calls == [True]


def test_traced_graphs_which_copy_and_pickle_themselves_stay_frozen() -> None:
    graph = fx.symbolic_trace(nn.Sequential(nn.Conv2d(2, 3, 1), nn.Dropout()))
    network = nn.Sequential(graph)
    freeze(graph)
    images = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    expected = network.eval()(images)
    for twin in (network, copy.deepcopy(network), _pickled(network)):
        assert isinstance(twin[0], fx.GraphModule)  # type: ignore[index]
        assert torch.equal(twin.eval()(images), expected)
        modes = {name: module.training for name, module in twin.train().named_modules()}
        assert not modes["0"] and modes["0.0"] and modes["0.1"]
        thaw(twin)
        assert all(module.training for module in twin.train().modules())
