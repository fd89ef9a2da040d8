import copy

import torch
from torch import nn

from inlay.branches.frozen import freeze, thaw


def _network() -> nn.Sequential:
    network = nn.Sequential(nn.BatchNorm2d(2), nn.Sequential(nn.Dropout(), nn.BatchNorm2d(2)))
    freeze(network[0])
    freeze(network[1])
    return network


def test_frozen_modules_stay_in_eval_and_pass_the_mode_on() -> None:
    for network in (_network(), copy.deepcopy(_network())):
        assert network.train() is network
        modes = [module.training for module in network.modules()]
        assert modes == [True, False, False, True, True]
        network.eval()
        assert not any(module.training for module in network.modules())


def test_statistics_of_a_frozen_norm_do_not_move() -> None:
    network = _network().train()
    network(torch.ones(4, 2, 3, 3))
    assert torch.equal(network.state_dict()["0.running_mean"], torch.zeros(2))
    assert not torch.equal(network.state_dict()["1.1.running_mean"], torch.zeros(2))


def test_frozen_modules_keep_type_and_name_and_can_be_thawed() -> None:
    network = _network()
    freeze(network[0])
    assert isinstance(network[0], nn.BatchNorm2d)
    assert type(network[0]).__name__ == "BatchNorm2d"
    thaw(network)
    assert type(network[0]) is nn.BatchNorm2d
    assert type(network[1]) is nn.Sequential
    assert all(module.training for module in network.train().modules())
