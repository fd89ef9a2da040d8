import pytest
import torch
from torch import nn

from inlay.backbones import build, names
from inlay.errors import InlayError

WIDTHS = {
    "resnet8": 64,
    "resnet20": 64,
    "resnet32": 64,
    "resnet18": 512,
    "resnet18-1x1": 512,
    "resnet8x2": 128,
    "efficientnet-lite0": 1280,
    "efficientnet-lite2": 1280,
    "efficientnet-lite0-imagenet": 1280,
    "efficientnet-lite2-imagenet": 1280,
}


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _cifar_parameters(blocks: int, in_channels: int = 3, widening: int = 1) -> int:
    channels, total = 16 * widening, in_channels * 16 * widening * 9 + 2 * 16 * widening
    for width in (16 * widening, 32 * widening, 64 * widening):
        for _ in range(blocks):
            total += 9 * channels * width + 9 * width * width + 4 * width
            channels = width
    return total


def test_names_are_those_of_the_protocol_and_efficientnet() -> None:
    protocol = {"resnet8", "resnet20", "resnet32", "resnet18", "resnet18-1x1"}
    increments = {"resnet32-rebuffi", "resnet32-rebuffi-relu", "resnet32-lucir", "resnet32-pycil"}
    scratch = {"efficientnet-lite0", "efficientnet-lite2"}
    assert set(names()) == protocol | increments | scratch | {f"{name}-imagenet" for name in scratch}


def test_resnet18_has_the_parameters_and_units_of_the_protocol() -> None:
    network = build("resnet18")
    assert _parameters(network) == 10_995_008
    assert sum(isinstance(module, nn.Conv2d) for module in network.modules()) == 17


def test_projected_resnet18_has_twenty_units() -> None:
    network = build("resnet18-1x1")
    assert sum(isinstance(module, nn.Conv2d) for module in network.modules()) == 20
    shortcuts = sum(a * b + 2 * b for a, b in [(64, 128), (128, 256), (256, 512)])
    assert _parameters(network) == 10_995_008 + shortcuts


@pytest.mark.parametrize(("name", "blocks"), [("resnet8", 1), ("resnet20", 3), ("resnet32", 5)])
def test_cifar_networks_have_the_parameters_of_their_depth(name: str, blocks: int) -> None:
    assert _parameters(build(name)) == _cifar_parameters(blocks)
    assert _parameters(build(f"{name}x2", in_channels=1)) == _cifar_parameters(blocks, 1, 2)


@pytest.mark.parametrize("name", WIDTHS)
def test_features_have_the_width_of_the_last_map_at_every_size(name: str) -> None:
    network = build(name).eval()
    for size in (7, 8, 14, 28, 32):
        with torch.no_grad():
            features = network(torch.zeros(2, 3, size, size))
        assert features.shape == (2, WIDTHS[name])


def test_weights_depend_on_the_generator_alone() -> None:
    torch.manual_seed(0)
    first = build("resnet8", generator=torch.Generator().manual_seed(5))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    second = build("resnet8", generator=torch.Generator().manual_seed(5))
    other = build("resnet8", generator=torch.Generator().manual_seed(6))
    assert torch.equal(before, torch.get_rng_state())
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    assert not torch.equal(first.state_dict()["conv.weight"], other.state_dict()["conv.weight"])


@pytest.mark.parametrize(
    "name", ["resnet9", "resnet8x0", "resnet8x", "resnet18x2", "x2", "resnet8x2x2", "efficientnet-lite0x2", ""]
)
def test_unknown_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InlayError, match=r"resnet8.*resnet18-1x1.*resnet8x2"):
        build(name)


def test_no_channels_are_refused() -> None:
    with pytest.raises(InlayError, match="in_channels must be at least 1"):
        build("resnet8", in_channels=0)
