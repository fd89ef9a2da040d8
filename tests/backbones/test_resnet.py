import pytest
import torch
from torch import nn

from inlay.backbones.resnet import BasicBlock, PoolPadShortcut, resnet


@pytest.mark.parametrize("size", [6, 7])
def test_parameter_free_shortcut_against_loops(size: int) -> None:
    images = torch.randn(2, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = PoolPadShortcut(extra_channels=2, stride=2)(images)
    half = (size + 1) // 2
    expected = torch.zeros(2, 5, half, half, dtype=torch.float64)
    for n in range(2):
        for c in range(3):
            for row in range(half):
                for column in range(half):
                    inside = [
                        images[n, c, y, x].item()
                        for y in (2 * row, 2 * row + 1)
                        for x in (2 * column, 2 * column + 1)
                        if y < size and x < size
                    ]
                    expected[n, c, row, column] = sum(inside) / len(inside)
    assert torch.allclose(out, expected, atol=1e-14)


def test_block_is_two_convolutions_plus_the_shortcut() -> None:
    generator = torch.Generator().manual_seed(0)
    block = BasicBlock(2, 2, stride=1, projection=False, generator=generator).double().eval()
    images = torch.randn(1, 2, 5, 5, dtype=torch.float64, generator=generator)
    inner = torch.relu(nn.functional.conv2d(images, block.conv1.weight, padding=1) / (1 + 1e-5) ** 0.5)
    outer = nn.functional.conv2d(inner, block.conv2.weight, padding=1) / (1 + 1e-5) ** 0.5
    assert torch.allclose(block(images), torch.relu(outer + images), atol=1e-12)


@pytest.mark.parametrize("projection", [False, True])
def test_strided_block_halves_odd_maps_upwards(projection: bool) -> None:
    block = BasicBlock(2, 4, stride=2, projection=projection, generator=torch.Generator().manual_seed(0))
    assert block(torch.zeros(2, 2, 7, 7)).shape == (2, 4, 4, 4)


def test_groups_halve_the_map_and_features_are_the_mean_of_the_last() -> None:
    network = resnet(1, [2, 4, 8], 1, generator=torch.Generator().manual_seed(0)).eval()
    sizes: list[tuple[int, ...]] = []
    for name in ("layer1", "layer2", "layer3"):
        network.get_submodule(name).register_forward_hook(
            lambda module, args, output: sizes.append(tuple(output.shape[1:]))
        )
    maps: list[torch.Tensor] = []
    network.get_submodule("layer3").register_forward_hook(lambda module, args, output: maps.append(output))
    features = network(torch.randn(3, 1, 14, 14, generator=torch.Generator().manual_seed(1)))
    assert sizes == [(2, 14, 14), (4, 7, 7), (8, 4, 4)]
    assert torch.allclose(features, maps[0].mean(dim=(2, 3)))
