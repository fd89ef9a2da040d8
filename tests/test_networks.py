import copy
import sys
from functools import cache

import pytest
import torch
from benchmarks import networks
from torch import Tensor, nn

from inlay.errors import InlayError

SMALL = {network.name: network for network in networks.small_networks()}
FULL = {network.name: network for network in networks.full_networks()}
every_small_network = pytest.mark.parametrize("name", SMALL)


@cache
def _fresh(name: str) -> nn.Module:
    """The network as it is built; a test that changes it works on a copy."""
    model: nn.Module = SMALL[name].build()
    return model.eval()


@cache
def _lived_in(name: str) -> nn.Module:
    return _live(_fresh(name), SMALL[name].example(1), seed=0)


def _live(model: nn.Module, example: Tensor, seed: int) -> nn.Module:
    lived: nn.Module = networks.lived_in(copy.deepcopy(model), example, torch.Generator().manual_seed(seed))
    return lived


def _output(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        output = model(images)
    tensor: Tensor = output if isinstance(output, Tensor) else output.logits
    return tensor


def _equal(first: nn.Module, second: nn.Module) -> bool:
    one, other = first.state_dict(), second.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _batch_norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


@every_small_network
def test_it_builds_and_maps_images_to_finite_rows(name: str) -> None:
    output = _output(_fresh(name), SMALL[name].example(2))
    assert output.dim() == 2 and len(output) == 2
    assert output.isfinite().all()


@every_small_network
def test_every_build_is_the_same_and_leaves_the_global_generator_alone(name: str) -> None:
    first = _fresh(name)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    assert _equal(first, SMALL[name].build())
    assert torch.equal(torch.get_rng_state(), state)


@every_small_network
def test_the_stock_network_has_other_weights_and_takes_the_state(name: str) -> None:
    built, stock = _lived_in(name), SMALL[name].stock().eval()
    images = SMALL[name].example(2)
    shapes = [{key: value.shape for key, value in model.state_dict().items()} for model in (built, stock)]
    assert shapes[0] == shapes[1]
    assert not _equal(_fresh(name), stock)
    stock.load_state_dict(built.state_dict(), strict=True)
    assert torch.equal(_output(stock, images), _output(built, images))


@every_small_network
def test_lived_in_gives_a_finite_network_in_eval_mode(name: str) -> None:
    lived = _lived_in(name)
    assert not any(module.training for module in lived.modules())
    assert all(value.isfinite().all() for value in lived.state_dict().values())
    output = _output(lived, SMALL[name].example(8))
    assert 0.01 <= output.abs().max() <= 100
    assert output.std(dim=0).max() > 0.01, "all images look the same to the network"


@every_small_network
def test_lived_in_depends_on_its_generator_alone(name: str) -> None:
    example = SMALL[name].example(1)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    assert _equal(_lived_in(name), _live(_fresh(name), example, seed=0))
    assert torch.equal(torch.get_rng_state(), state)


def test_lived_in_follows_its_generator() -> None:
    assert not _equal(_lived_in("vit"), _live(_fresh("vit"), SMALL["vit"].example(1), seed=1))


@every_small_network
def test_lived_in_leaves_nothing_at_its_first_value(name: str) -> None:
    lived = _lived_in(name)
    assert [key for key, value in lived.named_parameters() if value.numel() > 1 and value.min() == value.max()] == []
    for norm in _batch_norms(lived):
        assert norm.running_mean is not None and norm.running_mean.abs().max() > 1e-4
        assert norm.running_var is not None and norm.running_var.std() > 1e-4


@pytest.mark.parametrize("name", ["resnet8", "resnet-basic", "regnet-y", "mobilenetv2", "efficientnet"])
def test_batch_norms_get_scales_of_both_signs(name: str) -> None:
    gammas = torch.cat([norm.weight.detach() for norm in _batch_norms(_lived_in(name))])
    assert 0.3 < gammas.mean() < 0.7
    assert 0.01 < (gammas < 0).double().mean() < 0.25


@pytest.mark.parametrize(
    ("name", "scale"), [("convnext", "layer_scale_parameter"), ("dinov2", "lambda1"), ("convnextv2", "grn.weight")]
)
def test_layer_scales_get_the_size_at_which_blocks_matter(name: str, scale: str) -> None:
    scales = [value.abs().mean() for key, value in _lived_in(name).named_parameters() if key.endswith(scale)]
    assert scales and all(0.1 < value < 1 for value in scales)


def test_running_statistics_are_means_over_the_passes() -> None:
    norm = nn.BatchNorm2d(3, momentum=0.99)
    seen: list[Tensor] = []
    model = nn.Sequential(norm, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    norm.register_forward_pre_hook(lambda module, args: seen.append(args[0]) if module.training else None)
    _live_in_place(model, torch.zeros(1, 3, 6, 5))
    assert norm.momentum == 0.99
    assert norm.running_mean is not None and norm.running_var is not None
    assert norm.num_batches_tracked == len(seen) > 1
    for channel in range(3):
        values = [batch[:, channel].flatten().double() for batch in seen]
        mean = sum(float(batch.mean()) for batch in values) / len(values)
        variance = sum(float(batch.var()) for batch in values) / len(values)
        assert float(norm.running_mean[channel]) == pytest.approx(mean, rel=1e-4, abs=1e-6)
        assert float(norm.running_var[channel]) == pytest.approx(variance, rel=1e-4)


@pytest.mark.parametrize("factor", [0.0, 1e9, float("nan")])
def test_an_output_that_is_not_moderate_is_refused(factor: float) -> None:
    class Scaled(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return factor * images

    with pytest.raises(InlayError, match="largest output"):
        _live_in_place(Scaled(), torch.zeros(1, 3, 4, 4))


def _live_in_place(model: nn.Module, example: Tensor) -> None:
    assert networks.lived_in(model, example, torch.Generator().manual_seed(0)) is model


def test_trained_draws_for_all_but_pretrained_networks() -> None:
    for name in ("vit", "efficientnet-lite0"):
        model = networks.trained(SMALL[name], torch.Generator().manual_seed(0))
        assert not model.training
        assert _equal(model, _lived_in(name) if name == "vit" else _fresh(name))


def test_examples_are_the_same_each_time_and_of_the_size_asked_for() -> None:
    for network in [*SMALL.values(), *FULL.values()]:
        images = network.example(3)
        assert images.shape == (3, 3, images.shape[2], images.shape[2])
        assert torch.equal(images, network.example(3))


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("resnet-50", 25.6),
        ("regnet-y-4gf", 20.6),
        ("convnext-t", 28.6),
        ("mobilenetv2-1.0", 3.5),
        ("efficientnet-b0", 5.3),
        ("vit-b16", 86.6),
        ("swin-t", 28.3),
    ],
)
def test_full_networks_have_the_published_number_of_parameters(name: str, millions: float) -> None:
    with torch.device("meta"):
        model = FULL[name].build()
    assert sum(value.numel() for value in model.parameters()) == pytest.approx(millions * 1e6, rel=0.01)


def test_the_networks_for_the_gpu_come_from_both_packages_under_one_name_each() -> None:
    chosen = networks.gpu_networks()
    assert len({network.name for network in chosen}) == len(chosen) >= 20
    assert all(sum(network.source == source for network in chosen) >= 10 for source in ("timm", "torchvision"))


@pytest.mark.parametrize("package", ["timm", "torchvision", "transformers"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    everything = [*SMALL.values(), *networks.gpu_networks()]
    network = next(network for network in everything if network.source == package)
    with pytest.raises(InlayError, match=f"pip install --upgrade {package}"):
        network.build()
