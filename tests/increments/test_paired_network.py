import copy

import pytest
import torch
from torch import Tensor, nn

from inlay.backbones.resnet import resnet
from inlay.errors import InlayError
from inlay.increments.aggregation import AggregatedBlock, ScaledConv2d
from inlay.increments.paired_network import freeze_stable, paired
from proxy_stages import moved


def _network() -> nn.Sequential:
    network = resnet(1, [4, 6, 8], 1, projection=True, generator=torch.Generator().manual_seed(1))
    moved(network, 2)
    return network.double()


def _images() -> Tensor:
    return torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def _stir(network: nn.Module) -> None:
    randomness = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1 + 0.3 * torch.randn(parameter.shape, generator=randomness, dtype=torch.float64))


def _unscaled(module: nn.Module) -> nn.Module:
    """A stable block as one of plain convolutions, each kernel multiplied by its scale."""
    if isinstance(module, ScaledConv2d):
        conv = copy.deepcopy(module.conv)
        with torch.no_grad():
            for out in range(conv.weight.shape[0]):
                for channel in range(conv.weight.shape[1]):
                    conv.weight[out, channel] *= module.scale[out, channel, 0, 0]
        return conv
    plain = copy.deepcopy(module)
    for name, child in module.named_children():
        setattr(plain, name, _unscaled(child))
    return plain


def test_pairs_give_the_features_of_the_network_at_first_in_either_mode() -> None:
    network, images = _network(), _images()
    for training in (False, True):
        alone, pairs = copy.deepcopy(network).train(training), paired(network).train(training)
        torch.testing.assert_close(pairs(images), alone(images), rtol=1e-12, atol=1e-12)


def test_the_first_group_takes_the_stem_and_names_stay() -> None:
    network = _network()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    pairs = paired(network)
    assert [name for name, _ in pairs.named_children()] == ["layer1", "layer2", "layer3", "pool", "flatten"]
    assert [isinstance(child, AggregatedBlock) for child in pairs.children()] == [True, True, True, False, False]
    assert pairs.get_submodule("layer1.plastic.conv") is not network.get_submodule("conv")
    _stir(pairs)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert paired(pairs) is pairs


def test_features_are_those_of_the_published_network() -> None:
    pairs, images = paired(_network()).eval(), _images()
    _stir(pairs)
    groups = [pairs.get_submodule(name) for name in ("layer1", "layer2", "layer3")]
    passed = images
    for group in groups:
        assert isinstance(group, AggregatedBlock)
        share, both = float(group.share.detach()), [_unscaled(group.stable)(passed), group.plastic(passed)]
        if group is groups[-1]:
            # The published network mixes its last group after pooling.
            both = [maps.mean(dim=(2, 3)) for maps in both]
        passed = share * both[0] + (1 - share) * both[1]
    torch.testing.assert_close(pairs(images), passed, rtol=1e-12, atol=1e-12)


def test_what_is_frozen_is_the_stable_kernels_and_the_shares() -> None:
    pairs = paired(_network()).requires_grad_(True)
    freeze_stable(pairs)
    frozen = {name for name, parameter in pairs.named_parameters() if not parameter.requires_grad}
    kernels = {name for name, _ in pairs.named_parameters() if ".stable." in name and name.endswith(".conv.weight")}
    assert len(kernels) == 9 and frozen == kernels | {f"layer{group}.share" for group in (1, 2, 3)}


@pytest.mark.parametrize(
    "network", [nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), nn.ModuleDict({"layer1": nn.ReLU()})]
)
def test_networks_without_groups_are_refused(network: nn.Module) -> None:
    with pytest.raises(InlayError, match="which this network does not have; write resnet32-lucir"):
        paired(network)
