import pytest
import torch
from torch import Tensor, nn

from branch_networks import lively
from inlay.backbones import build
from inlay.backbones.twin import TwinNetwork
from inlay.branches import attach, count_parameters, fold, folded_parameters, gate, merge


def _images() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(9))


def _backbone(name: str = "resnet8") -> nn.Module:
    return lively(build(name, generator=torch.Generator().manual_seed(0))).eval()


def test_parameters_are_counted_and_buffers_are_not() -> None:
    assert count_parameters(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))) == 4 * 3 * 9 + 4 + 4 + 4


def test_a_batch_norm_leaves_one_bias_per_channel() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2))
    assert folded_parameters(model.eval(), _images()) == (4 * 3 * 9 + 4) + (2 * 4 * 9 + 2)


@pytest.mark.parametrize("name", ["resnet8", "resnet18-1x1"])
def test_the_count_is_the_same_before_and_after_folding_and_merging(name: str) -> None:
    model = _backbone(name)
    folded = fold(model, _images())
    merged = merge(attach(folded, _images(), gate("amm"), generator=torch.Generator())).model
    counts = {folded_parameters(network, _images()) for network in (model, folded, merged)}
    assert counts == {count_parameters(folded)} and count_parameters(folded) < count_parameters(model)


def test_a_hybrid_counts_with_its_branches() -> None:
    hybrid = attach(fold(_backbone(), _images()), _images(), gate("aff"), generator=torch.Generator()).eval()
    assert (
        folded_parameters(hybrid, _images()) == count_parameters(hybrid) > 2 * folded_parameters(_backbone(), _images())
    )


def test_a_twin_counts_with_both_last_groups() -> None:
    model = _backbone()
    twin = TwinNetwork(model, torch.Generator()).eval()
    last = count_parameters(fold(model, _images()).get_submodule("layer3"))
    assert folded_parameters(twin, _images()) == folded_parameters(model, _images()) + last
