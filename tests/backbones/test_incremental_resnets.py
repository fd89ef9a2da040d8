from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from inlay import backbones, branches
from inlay.backbones.incremental_resnets import (
    OpenBlock,
    SlicePadShortcut,
    lucir_resnet32,
    pycil_resnet32,
    rebuffi_resnet32,
    without_last_relu,
)
from inlay.backbones.resnet import BasicBlock, resnet
from proxy_stages import moved

Builder = Callable[[int, torch.Generator | None], nn.Sequential]
BOTH = pytest.mark.parametrize("build", [rebuffi_resnet32, lucir_resnet32])


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _trained(build: Builder) -> nn.Module:
    return moved(build(1, _generator()), 1).double().eval()


def _images(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=_generator(2))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet32-rebuffi", 463_504),
        ("resnet32-rebuffi-relu", 463_504),
        ("resnet32-lucir", 466_256),
        ("resnet32-pycil", 463_504),
    ],
)
def test_parameters_are_as_many_as_published(name: str, parameters: int) -> None:
    assert branches.count_parameters(backbones.build(name, 3)) == parameters


@BOTH
@pytest.mark.parametrize(("height", "width"), [(8, 8), (7, 9), (5, 6)])
def test_groups_halve_maps_upwards_and_features_are_the_mean_of_the_last(
    build: Builder, height: int, width: int
) -> None:
    network, sizes = _trained(build), list[tuple[int, ...]]()
    passed = _images(2, 1, height, width)
    with torch.no_grad():
        features = network(passed)
        for name, child in network.named_children():
            if name == "pool":
                break
            passed = child(passed)
            if name.startswith("layer"):
                sizes.append(tuple(passed.shape[1:]))
    halves = [(height, width), (-(-height // 2), -(-width // 2)), (-(-height // 4), -(-width // 4))]
    wanted = [(channels, *size) for channels, size in zip((16, 32, 64), halves, strict=True)]
    assert sizes == wanted + ([wanted[-1]] if build is rebuffi_resnet32 else [])
    assert features.shape == (2, 64)
    assert torch.allclose(features, passed.mean(dim=(2, 3)), atol=1e-12)


@BOTH
def test_blocks_stand_in_their_groups(build: Builder) -> None:
    network = build(3, None)
    blocks = [len(child) for child in network.children() if isinstance(child, nn.Sequential)]
    assert blocks == ([5, 5, 4, 1] if build is rebuffi_resnet32 else [5, 5, 5])


@pytest.mark.parametrize(
    ("build", "open_groups"),
    [(rebuffi_resnet32, ["layer1", "layer2", "layer3", "layer4"]), (lucir_resnet32, ["layer3"])],
)
def test_no_activation_follows_the_sum_where_groups_are_compared(build: Builder, open_groups: list[str]) -> None:
    network, passed, negative = _trained(build), _images(4, 1, 8, 8), list[str]()
    with torch.no_grad():
        for name, child in network.named_children():
            passed = child(passed)
            if name.startswith("layer") and passed.min() < 0:
                negative.append(name)
    assert negative == open_groups


def test_each_open_block_starts_as_its_shortcut() -> None:
    network = rebuffi_resnet32(1, _generator()).eval()
    blocks = [module for module in network.modules() if isinstance(module, OpenBlock)]
    assert len(blocks) == 15
    for block in blocks:
        images = torch.randn(2, block.conv1.in_channels, 6, 6, generator=_generator(1))
        assert torch.equal(block(images), block.shortcut(images))
        assert bool((block.norm1.weight == 1).all())


def test_open_block_against_its_formula() -> None:
    block = moved(OpenBlock(2, 4, 2, _generator()), 3).double().eval()
    assert isinstance(block, OpenBlock)
    images = _images(3, 2, 7, 5)
    hidden = nn.functional.conv2d(images, block.conv1.weight, stride=2, padding=1)
    hidden = torch.relu(block.norm1(hidden))
    outer = block.norm2(nn.functional.conv2d(hidden, block.conv2.weight, padding=1))
    assert torch.allclose(block(images), outer + SlicePadShortcut(2)(images), atol=1e-12)


@pytest.mark.parametrize("size", [6, 7])
def test_slicing_shortcut_against_loops(size: int) -> None:
    images, half = _images(2, 3, size, size), (size + 1) // 2
    expected = torch.zeros(2, 5, half, half, dtype=torch.float64)
    for n in range(2):
        for c in range(3):
            for row in range(half):
                for column in range(half):
                    expected[n, c, row, column] = images[n, c, 2 * row, 2 * column]
    assert torch.equal(SlicePadShortcut(2)(images), expected)


def test_lucir_shortcuts_are_convolutions_where_the_shape_changes() -> None:
    blocks = [module for module in lucir_resnet32(3).modules() if isinstance(module, BasicBlock)]
    changing = [place for place, block in enumerate(blocks) if not isinstance(block.shortcut, nn.Identity)]
    assert changing == [5, 10]
    assert all(isinstance(blocks[place].shortcut, nn.Sequential) for place in changing)


def test_a_last_relu_stands_in_front_of_the_pooling_and_can_be_left_out() -> None:
    network = moved(rebuffi_resnet32(1, _generator(), last_relu=True), 1).double().eval()
    images = _images(3, 1, 8, 8)
    before = without_last_relu(network)
    assert isinstance(network, nn.Sequential) and isinstance(before, nn.Sequential)
    with torch.no_grad():
        maps = images
        for name, child in before.named_children():
            if name == "pool":
                break
            maps = child(maps)
        after, raw = network(images), before(images)
    assert maps.min() < 0
    for image in range(3):
        for channel in range(64):
            pixels = maps[image, channel].flatten().tolist()
            assert after[image, channel].item() == pytest.approx(sum(max(0.0, pixel) for pixel in pixels) / len(pixels))
            assert raw[image, channel].item() == pytest.approx(sum(pixels) / len(pixels))
    assert {id(part) for part in before.parameters()} == {id(part) for part in network.parameters()}
    for other in (rebuffi_resnet32(1), nn.Linear(1, 1)):
        assert without_last_relu(other) is other


def test_a_last_relu_outlives_branches() -> None:
    network = moved(rebuffi_resnet32(1, _generator(), last_relu=True), 1).double().eval()
    images = _images(3, 1, 8, 8)
    hybrid = moved(branches.attach(branches.fold(network, images), images, "amm", generator=_generator(5)), 6)
    merged = branches.merge(hybrid, images).model
    with torch.no_grad():
        for found in (hybrid, merged):
            raw = without_last_relu(found)(images)
            assert raw.min() < 0 and found(images).min() >= 0
        scale = max(1.0, float(raw.abs().max()))
        assert torch.allclose(without_last_relu(hybrid)(images) / scale, raw / scale, atol=1e-11, rtol=0)


def test_pycil_network_is_the_usual_one_with_slicing_shortcuts() -> None:
    network, usual = pycil_resnet32(3, _generator()), resnet(3, (16, 32, 64), 5, generator=_generator())
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in usual.state_dict().items())
    blocks = [module for module in network.modules() if isinstance(module, BasicBlock)]
    sliced = [place for place, block in enumerate(blocks) if isinstance(block.shortcut, SlicePadShortcut)]
    assert sliced == [5, 10]
    assert all(isinstance(block.relu2, nn.ReLU) for block in blocks)
    images = torch.randn(2, 3, 9, 9, generator=_generator(1))
    assert network.eval()(images).shape == (2, 64) and not torch.allclose(network(images), usual.eval()(images))


@BOTH
def test_one_generator_state_gives_one_network(build: Builder) -> None:
    state = torch.random.get_rng_state()
    first, second = build(3, _generator(4)).state_dict(), build(3, _generator(4)).state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(("build", "units"), [(rebuffi_resnet32, 31), (lucir_resnet32, 33)])
def test_every_convolution_takes_a_branch_that_merges_exactly(build: Builder, units: int) -> None:
    network, images = _trained(build), _images(4, 1, 7, 7)
    folded = branches.fold(network, images)
    assert len(branches.folded_layers(folded)) == units
    hybrid = branches.attach(folded, images, "amm", generator=_generator(5))
    assert len(branches.hybrid_units(hybrid)) == units
    with torch.no_grad():
        start = network(images)
        assert torch.allclose(folded(images), start, atol=1e-11, rtol=0)
        assert torch.allclose(hybrid(images), start, atol=1e-11, rtol=0)
        moved(hybrid, 6)
        changed = hybrid(images)
        assert (changed - start).abs().max() > 1e-2
        merged = branches.merge(hybrid, images)
        scale = max(1.0, float(changed.abs().max()))
        assert torch.allclose(merged.model(images) / scale, changed / scale, atol=1e-11, rtol=0)
    assert branches.count_parameters(merged.model) == branches.count_parameters(folded)
