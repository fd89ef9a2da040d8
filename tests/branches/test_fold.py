import copy

import pytest
import torch
from torch import Tensor, nn

from inlay.backbones import build
from inlay.branches import FoldedConv, attach, count_parameters, fold
from inlay.errors import InlayError


def _lively(network: nn.Module, seed: int = 0) -> nn.Module:
    """Give every norm of a network statistics, scales and shifts that differ from the defaults."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            with torch.no_grad():
                module.weight.normal_(1, 0.3, generator=generator)
                module.bias.normal_(0, 0.3, generator=generator)
                module.running_mean.normal_(0, 0.3, generator=generator)
                module.running_var.uniform_(0.5, 2, generator=generator)
    return network


def _images(size: int = 8, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(9)).to(dtype)


@pytest.mark.parametrize(("name", "units"), [("resnet8", 7), ("resnet32", 31), ("resnet18", 17), ("resnet18-1x1", 20)])
def test_folding_keeps_the_function(name: str, units: int) -> None:
    network = _lively(build(name, generator=torch.Generator().manual_seed(0)).double())
    images = _images(dtype=torch.float64)
    folded = fold(network, images)
    expected = network.eval()(images)
    assert torch.allclose(folded(images), expected, rtol=0, atol=1e-12 * max(1.0, expected.abs().max().item()))
    assert sum(isinstance(module, FoldedConv) for module in folded.modules()) == units
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    assert not any(module.training for module in folded.modules())


def test_parameter_count_of_the_protocol() -> None:
    folded = fold(build("resnet18", generator=torch.Generator().manual_seed(0)), _images())
    assert count_parameters(folded) == 10_991_104


def test_the_original_is_left_as_it_was() -> None:
    network = _lively(build("resnet8"))
    before = copy.deepcopy(network.state_dict())
    fold(network, _images())
    assert all(module.training for module in network.modules())
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert before.keys() == network.state_dict().keys()
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in before.items())


def test_gamma_is_the_scale_of_the_norm() -> None:
    network = _lively(build("resnet8"))
    folded = fold(network, _images())
    conv = folded.get_submodule("layer2.0.conv1")
    assert isinstance(conv, FoldedConv)
    assert torch.equal(conv.gamma, network.state_dict()["layer2.0.norm1.weight"])


def test_dtype_and_channels_last_are_kept() -> None:
    network = _lively(build("resnet8").double())
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    folded = fold(network, _images(dtype=torch.float64))
    for module in folded.modules():
        if isinstance(module, FoldedConv):
            assert module.weight.dtype == module.bias.dtype == module.gamma.dtype == torch.float64
            assert module.weight.is_contiguous(memory_format=torch.channels_last)


def test_raw_use_of_a_convolution_is_refused_even_with_default_norms() -> None:
    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, images: Tensor) -> Tensor:
            hidden: Tensor = self.conv(images)
            normed: Tensor = self.norm(hidden)
            return (normed + hidden).flatten(1)

    with pytest.raises(InlayError, match="output of 'conv' is used by more"):
        fold(Raw(), _images())


def test_a_different_function_is_refused() -> None:
    class ReadsWeight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, images: Tensor) -> Tensor:
            normed: Tensor = self.norm(self.conv(images))
            return normed.flatten(1) + self.conv.weight.sum()

    with pytest.raises(InlayError, match="differs from the original"):
        fold(_lively(ReadsWeight()), _images())


def test_outputs_that_are_not_finite_are_refused() -> None:
    network = build("resnet8")
    with torch.no_grad():
        network.state_dict()["conv.weight"][0] = torch.nan
    with pytest.raises(InlayError, match="differs from the original by nan"):
        fold(network, _images())


def test_networks_without_pairs_are_refused() -> None:
    with pytest.raises(InlayError, match=r"no torch\.nn\.Conv2d whose output"):
        fold(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten()), _images())
    folded = fold(build("resnet8"), _images())
    with pytest.raises(InlayError, match="folded already"):
        fold(folded, _images())
    with pytest.raises(InlayError, match="merge them"):
        fold(attach(folded), _images())


def test_networks_that_return_several_tensors_are_refused() -> None:
    class Two(nn.Module):
        def forward(self, images: Tensor) -> list[Tensor]:
            return [images, images]

    with pytest.raises(InlayError, match="returned a list"):
        fold(Two(), _images())
