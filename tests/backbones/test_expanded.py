import copy

import pytest
import torch
from torch import Tensor, nn

from inlay.backbones.expanded import ExpandedNetwork, expand
from inlay.backbones.resnet import resnet


def _network(seed: int) -> nn.Sequential:
    return resnet(1, [2, 4], 1, generator=torch.Generator().manual_seed(seed))


def _images(seed: int = 0) -> Tensor:
    return torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def _state(network: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(network.state_dict())


def test_features_are_those_of_all_networks_in_their_order() -> None:
    networks = [_network(seed).eval() for seed in range(3)]
    features = ExpandedNetwork(networks).eval()(_images())
    assert features.shape == (5, 12)
    for place, network in enumerate(networks):
        assert torch.equal(features[:, 4 * place : 4 * place + 4], network(_images()))


def test_only_the_newest_network_learns() -> None:
    expanded = expand(expand(_network(0)))
    before = [_state(network) for network in expanded.networks]
    optimizer = torch.optim.SGD([p for p in expanded.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    for step in range(3):
        expanded.train()
        optimizer.zero_grad()
        expanded(_images(step)).square().mean().backward()
        optimizer.step()
    for network, state in zip(expanded.networks[:-1], before, strict=False):
        for name, tensor in network.state_dict().items():
            assert torch.equal(tensor, state[name])
    for name, tensor in expanded.newest.state_dict().items():
        assert not torch.equal(tensor, before[-1][name])


def test_old_networks_stay_in_eval_mode() -> None:
    expanded = expand(expand(_network(0).train()))
    # Through a module around it, too.
    nn.Sequential(expanded).train()
    modes = [{module.training for module in network.modules()} for network in expanded.networks]
    assert modes == [{False}, {False}, {True}]
    expanded.eval()
    assert not any(module.training for module in expanded.modules())


def test_the_new_network_is_a_copy_of_the_newest_and_the_others_are_held() -> None:
    first = expand(_network(0))
    with torch.no_grad():
        for parameter in first.newest.parameters():
            parameter.add_(1)
    second = expand(first)
    assert [*second.networks[:2]] == [*first.networks]
    newest, source = second.newest.state_dict(), first.newest.state_dict()
    assert all(torch.equal(tensor, source[name]) for name, tensor in newest.items())
    assert not {p.data_ptr() for p in second.newest.parameters()} & {p.data_ptr() for p in first.parameters()}
    trained = sum(p.numel() for p in second.parameters() if p.requires_grad)
    assert 3 * trained == sum(p.numel() for p in second.parameters())


def test_one_network_is_no_expansion() -> None:
    with pytest.raises(ValueError, match="two networks at least; got 1"):
        ExpandedNetwork([_network(0)])
