"""The real networks on which branches are tested and measured."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay import backbones
from inlay.errors import InlayError

__all__ = ["Network", "full_networks", "gpu_networks", "lived_in", "small_networks", "trained"]

Source = Literal["inlay", "transformers", "timm", "torchvision", "pretrained"]

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
OTHER_NORMS = (nn.LayerNorm, nn.GroupNorm)
AFFINE_MAPS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# What transformers, torchvision and timm call the factor at the end of a residual block.
LAYER_SCALES = {"lambda1", "layer_scale_parameter", "layer_scale", "gamma"}
STATISTICS_PASSES, STATISTICS_BATCH = 4, 8
SMALLEST_OUTPUT, LARGEST_OUTPUT = 0.01, 100.0


@dataclass(frozen=True)
class Network:
    """An image classifier that can be built again and again with the same weights.

    Attributes:
        name: What tables call the network.
        source: Where its architecture comes from; "pretrained" is one of ours with published weights.
        build: Gives the network; the weights are the same each time, and no global random state is touched.
        example: Maps a batch size N to images [N, 3, H, W], the same each time.
        stock: Gives the same architecture with other weights, to load a state dict into.
    """

    name: str
    source: Source
    build: Callable[[], nn.Module]
    example: Callable[[int], Tensor]
    stock: Callable[[], nn.Module]


def small_networks() -> list[Network]:
    """Return tiny networks of every family, for tests on a CPU: a training step takes a fraction of a second."""
    hf = partial(_transformers, num_labels=5)
    stages: dict[str, Any] = {"hidden_sizes": [8, 16], "depths": [2, 1]}
    vit: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
    swin: dict[str, Any] = {"embed_dim": 8, "depths": [2, 1], "num_heads": [1, 2], "patch_size": 2, "window_size": 4}
    return [
        _inlay("resnet8", 16),
        _inlay("resnet18", 16),
        _inlay("resnet18-1x1", 16),
        hf("resnet-basic", "ResNet", 32, embedding_size=8, layer_type="basic", **stages),
        hf("resnet-bottleneck", "ResNet", 32, embedding_size=8, hidden_sizes=[16, 32], depths=[2, 1]),
        hf("regnet-y", "RegNet", 32, embedding_size=8, groups_width=4, **stages),
        hf("convnext", "ConvNext", 32, num_stages=2, **stages),
        hf("convnextv2", "ConvNextV2", 32, num_stages=2, **stages),
        hf("mobilenetv2", "MobileNetV2", 64, depth_multiplier=0.25, finegrained_output=False),
        # The width coefficient gives the last of the convolutions 0.25 · 1280 channels; hidden_dim must say so.
        hf("efficientnet", "EfficientNet", 64, width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320),
        hf("vit", "ViT", 32, image_size=32, intermediate_size=32, **vit),
        hf("dinov2", "Dinov2", 32, image_size=32, mlp_ratio=2, **vit),
        hf("dinov2-swiglu", "Dinov2", 32, image_size=32, mlp_ratio=2, use_swiglu_ffn=True, **vit),
        hf("swin", "Swin", 32, image_size=32, **swin),
        hf("swinv2", "Swinv2", 32, image_size=32, **swin),
        _efficientnet_lite0(64),
    ]


def full_networks() -> list[Network]:
    """Return networks of the same families at the sizes in which they are used."""
    hf = partial(_transformers, num_labels=1000)
    b0: dict[str, Any] = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280, "dropout_rate": 0.2}
    return [
        _inlay("resnet18", 32),
        hf("resnet-50", "ResNet", 224),
        hf("regnet-y-4gf", "RegNet", 224),
        hf("convnext-t", "ConvNext", 224),
        hf("mobilenetv2-1.0", "MobileNetV2", 224),
        hf("efficientnet-b0", "EfficientNet", 224, image_size=224, **b0),
        hf("vit-b16", "ViT", 224),
        hf("dinov2-s14", "Dinov2", 224, hidden_size=384, num_attention_heads=6),
        hf("swin-t", "Swin", 224),
        _efficientnet_lite0(224),
    ]


def gpu_networks() -> list[Network]:
    """Return well-known architectures of torchvision and timm with random weights.

    Their `build` and `stock` raise InlayError where the package is not installed or does not fit torch.
    """
    return [
        _torchvision("resnet50"),
        _torchvision("resnext50_32x4d"),
        _torchvision("densenet121"),
        _torchvision("mobilenet_v2"),
        _torchvision("efficientnet_b0"),
        _torchvision("regnet_y_400mf"),
        _torchvision("shufflenet_v2_x1_0"),
        _torchvision("vgg16_bn"),
        _torchvision("googlenet", aux_logits=False, init_weights=False),
        _torchvision("convnext_tiny"),
        _torchvision("vit_b_16"),
        _torchvision("swin_v2_t", 256),
        _timm("resnetv2_50"),
        _timm("resnest50d"),
        _timm("seresnet50"),
        _timm("mobilenetv3_large_100"),
        _timm("regnety_016"),
        _timm("efficientnetv2_rw_s", 288),
        _timm("repvgg_a0"),
        _timm("hrnet_w18_small"),
        _timm("cspresnet50", 256),
        _timm("convnextv2_tiny"),
        _timm("vit_small_patch16_224"),
        _timm("deit3_small_patch16_224"),
        _timm("swin_tiny_patch4_window7_224"),
        _timm("mixer_s16_224"),
    ]


def trained(network: Network, generator: torch.Generator) -> nn.Module:
    """Build a network as training would leave it: a pretrained one as it is, any other through `lived_in`.

    Args:
        network: What to build.
        generator: Source of everything that is drawn.

    Returns:
        The network in eval mode.
    """
    model = network.build()
    return model.eval() if network.source == "pretrained" else lived_in(model, network.example(1), generator)


def lived_in(model: nn.Module, example: Tensor, generator: torch.Generator) -> nn.Module:
    """Make a network straight from its constructor look trained, in place.

    Fresh networks hide errors: their norms are trivial and many of their blocks contribute next to nothing.
    This draws new weights of unit gain, scales and shifts (of batch norms a few scales are negative), layer
    scales of the size at which blocks matter, and gathers the running statistics over varied images.

    Args:
        model: Network on any device.
        example: Images the network accepts, [N, 3, H, W]; only shape, type and device count.
        generator: Source of everything that is drawn, on the CPU.

    Returns:
        The network that was passed in, in eval mode.

    Raises:
        InlayError: If the outputs are not of moderate size afterwards.
    """
    model.eval()
    with torch.no_grad():
        for module in model.modules():
            _draw_parameters(module, generator)
        _gather_statistics(model, example, generator)
        output = model(_images(len(example), example.shape[-2:], generator).to(example))
    largest = float((output if isinstance(output, Tensor) else output.logits).abs().max())
    # Written so that NaN is refused, too.
    if not SMALLEST_OUTPUT <= largest <= LARGEST_OUTPUT:
        raise InlayError(
            f"The largest output is {largest:.1e}, outside {SMALLEST_OUTPUT:g} to {LARGEST_OUTPUT:g}; teach "
            f"lived_in how to draw the parameters of {type(model).__name__}."
        )
    return model


def _draw_parameters(module: nn.Module, generator: torch.Generator) -> None:
    def draw(parameter: Any, mean: float, deviation: float) -> None:
        if isinstance(parameter, nn.Parameter):
            parameter.copy_(mean + deviation * torch.randn(parameter.shape, generator=generator))

    if isinstance(module, BATCH_NORMS):
        draw(module.weight, 0.5, 0.35)
        draw(module.bias, 0.3, 0.2)
    elif isinstance(module, OTHER_NORMS):
        draw(module.weight, 1.0, 0.2)
        draw(module.bias, 0.0, 0.1)
    elif isinstance(module, AFFINE_MAPS):
        draw(module.weight, 0.0, module.weight[0].numel() ** -0.5)
        draw(module.bias, 0.0, 0.1)
    else:
        for name, parameter in module.named_parameters(recurse=False):
            if name in LAYER_SCALES:
                draw(parameter, 0.5, 0.2)
            elif parameter.min() == parameter.max():
                draw(parameter, float(parameter.max()), 0.2)


def _gather_statistics(model: nn.Module, example: Tensor, generator: torch.Generator) -> None:
    norms = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        # Without momentum the statistics are plain means over the passes. Only the norms are in train mode:
        # dropout would draw from the global generator.
        norm.momentum = None
        norm.train()
    for _ in range(STATISTICS_PASSES if norms else 0):
        model(_images(STATISTICS_BATCH, example.shape[-2:], generator).to(example))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def _images(batch: int, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw images [N, 3, H, W] that differ in contrast, colour and coarse structure, as white noise does not."""
    coarse = F.interpolate(torch.randn(batch, 3, 4, 4, generator=generator), size=size, mode="bilinear")
    contrast = 0.5 + torch.rand(batch, 1, 1, 1, generator=generator)
    colour = 0.5 * torch.randn(batch, 3, 1, 1, generator=generator)
    return contrast * (coarse + 0.5 * torch.randn(batch, 3, *size, generator=generator)) + colour


def _example(size: int) -> Callable[[int], Tensor]:
    return lambda batch: _images(batch, (size, size), torch.Generator().manual_seed(0))


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    # The packages initialise from the global generator, which gets its state back.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


def _network(name: str, source: Source, size: int, make: Callable[[], nn.Module]) -> Network:
    return Network(name, source, partial(_seeded, make, 0), _example(size), partial(_seeded, make, 1))


def _inlay(name: str, size: int) -> Network:
    return _network(name, "inlay", size, partial(backbones.build, name))


def _transformers(name: str, family: str, size: int, **settings: Any) -> Network:
    def make(package: ModuleType) -> nn.Module:
        configuration = getattr(package, f"{family}Config")(**settings)
        model: nn.Module = getattr(package, f"{family}ForImageClassification")(configuration)
        return model

    return _network(name, "transformers", size, partial(_from_package, "transformers", make))


def _torchvision(name: str, size: int = 224, **settings: Any) -> Network:
    def make(package: ModuleType) -> nn.Module:
        model: nn.Module = package.models.get_model(name, weights=None, **settings)
        return model

    return _network(f"torchvision {name}", "torchvision", size, partial(_from_package, "torchvision", make))


def _timm(name: str, size: int = 224) -> Network:
    def make(package: ModuleType) -> nn.Module:
        model: nn.Module = package.create_model(name, pretrained=False)
        return model

    return _network(f"timm {name}", "timm", size, partial(_from_package, "timm", make))


def _from_package(package: str, make: Callable[[ModuleType], nn.Module]) -> nn.Module:
    # A package that was built for another torch raises RuntimeError on import.
    try:
        return make(import_module(package))
    except (ImportError, RuntimeError) as error:
        raise InlayError(
            f"This network needs {package}, in a version that fits torch {torch.__version__}; write "
            f"pip install --upgrade {package}."
        ) from error


def _efficientnet_lite0(size: int) -> Network:
    build = partial(backbones.pretrained_efficientnet_lite, "efficientnet-lite0-imagenet", head=True)
    stock = partial(_seeded, partial(backbones.efficientnet_lite, 0, classes=1000), 1)
    return Network("efficientnet-lite0", "pretrained", build, _example(size), stock)
