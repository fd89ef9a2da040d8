import copy
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.backbones.resnet import BasicBlock
from inlay.increments.aggregation import AggregatedBlock, ScaledConv2d, aggregated, mixing_shares


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _stage() -> nn.Sequential:
    generator = torch.Generator().manual_seed(1)
    blocks = [BasicBlock(3, 4, 2, True, generator), BasicBlock(4, 4, 1, True, generator)]
    return nn.Sequential(*blocks).double()


def _conv(groups: int) -> nn.Conv2d:
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=groups).double()
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(_normal(2, *parameter.shape))
    return conv


@pytest.mark.parametrize("groups", [1, 2])
def test_a_scale_multiplies_the_kernel_of_its_pair_of_channels(groups: int) -> None:
    conv, images = _conv(groups), _normal(3, 2, 4, 5, 5)
    scaled = ScaledConv2d(conv)
    assert torch.equal(scaled(images), conv(images))
    with torch.no_grad():
        scaled.scale.copy_(_normal(4, 6, 4 // groups, 1, 1))
    kernel, scale = torch.empty_like(conv.weight), scaled.scale.detach()
    for out in range(6):
        for channel in range(4 // groups):
            kernel[out, channel] = conv.weight[out, channel].detach() * float(scale[out, channel])
    wanted = F.conv2d(images, kernel, conv.bias, stride=2, padding=1, groups=groups)
    torch.testing.assert_close(scaled(images), wanted, rtol=1e-12, atol=1e-12)


def test_a_new_pair_gives_the_outputs_of_its_block_in_either_mode() -> None:
    stage, images = _stage(), _normal(5, 4, 3, 6, 6)
    for training in (False, True):
        pair, alone = aggregated(stage).train(training), copy.deepcopy(stage).train(training)
        torch.testing.assert_close(pair(images), alone(images), rtol=1e-12, atol=1e-12)


def test_the_mix_equals_the_formula() -> None:
    images = _normal(6, 2, 4, 5, 5)
    stable, plastic = _conv(1), _conv(2)
    block = AggregatedBlock(stable, plastic)
    assert block.share.item() == 0.5
    with torch.no_grad():
        block.share.fill_(0.3)
    torch.testing.assert_close(block(images), 0.3 * stable(images) + 0.7 * plastic(images))


def test_what_is_trained() -> None:
    stage = _stage().requires_grad_(False)
    pair = aggregated(stage)
    frozen = {name for name, parameter in pair.named_parameters() if not parameter.requires_grad}
    convs = {name for name, module in stage.named_modules() if isinstance(module, nn.Conv2d)}
    assert len(convs) == 5
    assert frozen == {f"stable.{name}.conv.weight" for name in convs}
    assert not any(parameter.requires_grad for parameter in stage.parameters())
    torch.autograd.backward([pair(_normal(5, 4, 3, 6, 6)).square().sum()])
    assert all(p.grad is not None for p in pair.parameters() if p.requires_grad)
    assert all(parameter.grad is None for parameter in stage.parameters())


def test_the_copies_share_nothing() -> None:
    stage, images = _stage(), _normal(5, 4, 3, 6, 6)
    pair = aggregated(stage)
    before = stage.eval()(images)
    with torch.no_grad():
        for parameter in pair.plastic.parameters():
            parameter.zero_()
    assert torch.equal(stage(images), before)
    torch.testing.assert_close(pair.eval()(images), before / 2)


def test_mixing_before_or_after_average_pooling_is_the_same() -> None:
    images = _normal(6, 2, 4, 5, 5)
    stable, plastic, pool = _conv(1), _conv(2), nn.AdaptiveAvgPool2d(1)
    before = pool(AggregatedBlock(stable, plastic)(images))
    after = AggregatedBlock(nn.Sequential(stable, pool), nn.Sequential(plastic, pool))(images)
    torch.testing.assert_close(before, after, rtol=1e-12, atol=1e-12)


def test_a_block_may_be_a_single_convolution() -> None:
    pair = aggregated(_conv(1))
    assert isinstance(pair.stable, ScaledConv2d)


def test_shares_of_a_network_are_found_and_have_a_gradient() -> None:
    first, second = aggregated(_stage()), aggregated(_conv(1))
    network = nn.Sequential(OrderedDict(first=first, second=second, flatten=nn.Flatten()))
    shares = mixing_shares(network)
    assert [id(share) for share in shares] == [id(first.share), id(second.share)]
    with torch.no_grad():
        for parameter in second.plastic.parameters():
            parameter.mul_(2)
    images = _normal(5, 4, 3, 6, 6)

    def loss(share: Tensor) -> Tensor:
        outputs = torch.func.functional_call(network.eval(), {"second.share": share}, (images,))
        assert isinstance(outputs, Tensor)
        return outputs.square().mean()

    assert torch.autograd.gradcheck(loss, (shares[1].detach().clone().requires_grad_(),))
