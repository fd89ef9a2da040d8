import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import networks
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from inlay.branches import attach, branch_parameters, fold, gammas, merge
from inlay.branches.comparison import difference, full_precision_outputs
from inlay.branches.delta import fingerprint
from inlay.branches.example import floating_outputs
from inlay.branches.stock import load_gammas, save_stock, stock_state_dict
from inlay.errors import InlayError

NETWORKS = {
    network.name: network
    for network in networks.small_networks()
    if any(word in network.name for word in ("resnet", "regnet", "mobilenet", "efficientnet"))
}


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _relative(one: nn.Module, other: nn.Module, example: Tensor) -> float:
    outputs = [full_precision_outputs(model, example, "example") for model in (one, other)]
    return difference(*outputs).relative


def _lived_in(*parts: nn.Module) -> nn.Sequential:
    """A network with drawn weights, biases, scales, shifts and statistics."""
    model = nn.Sequential(*parts, nn.LeakyReLU(0.5)).eval()
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            drawn = torch.randn(tensor.shape, generator=_generator(len(name)), dtype=torch.float64)
            tensor.copy_(drawn.abs() + 0.1 if name.endswith("running_var") else drawn)
        else:
            tensor.fill_(7)
    return model


def _bit_equal(one: nn.Module, other: nn.Module) -> bool:
    return fingerprint(one.state_dict()) == fingerprint(other.state_dict())


def _merged_after_training(model: nn.Module, images: Tensor) -> nn.Module:
    hybrid = attach(model, images[:1], generator=_generator()).train()
    optimizer = torch.optim.SGD(branch_parameters(hybrid), lr=0.03)
    for _ in range(2):
        loss = torch.stack([output.pow(2).mean() for output in floating_outputs(hybrid(images))]).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return merge(hybrid.eval()).model


def test_every_small_network_with_batch_norm_is_here() -> None:
    for network in networks.small_networks():
        if network.name not in NETWORKS:
            assert not any(isinstance(module, _BatchNorm) for module in network.build().modules())


@pytest.mark.parametrize("name", NETWORKS)
def test_the_stock_network_takes_what_was_merged_and_gives_it_back(name: str) -> None:
    network, images = NETWORKS[name], NETWORKS[name].example(2)
    original = networks.trained(network, _generator())
    merged = _merged_after_training(original, images)
    assert _relative(original, merged, images) > 1e-3
    weights = stock_state_dict(merged)
    stock = network.stock()
    assert list(weights) == list(stock.state_dict())
    stock.load_state_dict(weights, strict=True)
    stock.eval()
    # Deep networks amplify float32 rounding; the weights themselves are judged in float64 arithmetic.
    assert _relative(merged, stock, images) <= 3e-5
    assert _relative(copy.deepcopy(merged).double(), copy.deepcopy(stock).double(), images.double()) <= 1e-5
    with pytest.raises(InlayError, match=r"its gamma is lost; pass the gammas .* gammas="):
        fold(stock, images[:1])
    assert _bit_equal(fold(stock, images[:1], gammas=gammas(merged)), merged)


def test_in_float64_the_stock_network_is_the_merged_one() -> None:
    network = NETWORKS["resnet8"]
    images = network.example(2).double()
    merged = _merged_after_training(networks.trained(network, _generator()).double(), images)
    stock = network.stock().double().eval()
    stock.load_state_dict(stock_state_dict(merged), strict=True)
    assert _relative(merged, stock, images) <= 1e-12


LAYERS: list[tuple[type[nn.Module], tuple[Any, ...], type[nn.Module], tuple[int, ...]]] = [
    (nn.Conv1d, (3, 4, 3), nn.BatchNorm1d, (2, 3, 6)),
    (nn.Conv2d, (3, 4, 3), nn.BatchNorm2d, (2, 3, 6, 5)),
    (nn.Conv3d, (3, 4, 3), nn.BatchNorm3d, (2, 3, 4, 5, 6)),
    (nn.Linear, (3, 4), nn.BatchNorm1d, (2, 3)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kind", "sizes", "norm", "shape"), LAYERS, ids=["conv1d", "conv2d", "conv3d", "linear"])
def test_bias_goes_to_the_layer_or_else_to_its_batch_norm(
    kind: Any, sizes: tuple[Any, ...], norm: Any, shape: tuple[int, ...], bias: bool, affine: bool, dtype: torch.dtype
) -> None:
    def build() -> nn.Sequential:
        return _lived_in(kind(*sizes, bias=bias), norm(4, affine=affine)).to(dtype)

    images = torch.randn(shape, generator=_generator(), dtype=torch.float64).to(dtype)
    folded = fold(build(), images)
    weights = stock_state_dict(folded)
    fused = folded.get_parameter("0.bias")
    places = {"0.bias": 1, "1.bias": 1, "1.running_mean": -1}
    home = "0.bias" if bias else "1.bias" if affine else "1.running_mean"
    for place, sign in places.items():
        if place in weights:
            assert torch.equal(weights[place], sign * fused if place == home else torch.zeros_like(fused))
    if affine:
        assert torch.equal(weights["1.weight"], torch.ones_like(fused))
    assert weights["1.num_batches_tracked"] == 7
    stock = build()
    stock.load_state_dict(weights, strict=True)
    assert _relative(folded, stock, images) <= (1e-6 if dtype == torch.float32 else 1e-15)
    assert _bit_equal(fold(stock, images, gammas=gammas(folded)), folded)
    with pytest.raises(InlayError, match="pass the gammas"):
        fold(stock, images)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("eps", [1e-12, 1e-8, 5e-8, 1e-5, 3e-4, 1e-3, 0.1, 0.3])
def test_the_scale_is_one_and_moves_no_bit_of_any_weight(eps: float, dtype: torch.dtype) -> None:
    # Weights over two octaves, with every pattern of the last bits.
    values = 1 + 3 * torch.rand(128, 128, generator=_generator(), dtype=torch.float64)
    values[0, :3] = torch.tensor([1.0, 2.0, 2 - torch.finfo(dtype).eps])
    model = _lived_in(nn.Linear(128, 128, bias=False), nn.BatchNorm1d(128, eps=eps)).to(dtype)
    example = torch.zeros(2, 128, dtype=dtype)
    folded = fold(model, example)
    folded.get_parameter("0.weight").data.copy_(values)
    weights = stock_state_dict(folded)
    scale = (weights["1.running_var"].double() + eps).rsqrt()
    assert (scale - 1).abs().max() <= (1e-7 if torch.finfo(dtype).bits > 16 else torch.finfo(dtype).eps / 4)
    stock = copy.deepcopy(model)
    stock.load_state_dict(weights, strict=True)
    assert _bit_equal(fold(stock, example, gammas=gammas(folded)), folded)
    if torch.finfo(dtype).bits > 16:
        with pytest.raises(InlayError, match="pass the gammas"):
            fold(stock, example)


class _Shared(nn.Module):
    """Two convolutions in front of one batch norm."""

    def __init__(self, first_bias: bool, second_bias: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, bias=first_bias)
        self.second = nn.Conv2d(3, 4, 1, bias=second_bias)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.first(images)).mean((2, 3)) + self.norm(self.second(images)).mean((2, 3))  # type: ignore[no-any-return]


def _folded_shared(first_bias: bool, second_bias: bool) -> tuple[nn.Module, Tensor, nn.Module]:
    """A folded network of two layers with different biases, an example, and the stock network."""
    network = _lived_in(_Shared(first_bias, second_bias))
    images = torch.randn(2, 3, 5, 5, generator=_generator())
    folded = fold(network, images)
    folded.get_parameter("0.second.bias").data += 1.0
    return folded, images, network


def test_layers_that_share_a_batch_norm_need_equal_biases_or_biases_of_their_own() -> None:
    folded, images, stock = _folded_shared(False, False)
    with pytest.raises(InlayError, match=r"'0\.first', '0\.second' share the batch norm '0\.norm'.*bias=True"):
        stock_state_dict(folded)
    folded.get_parameter("0.second.bias").data.copy_(folded.get_parameter("0.first.bias"))
    stock.load_state_dict(stock_state_dict(folded), strict=True)
    assert _relative(folded, stock, images) <= 1e-6


@pytest.mark.parametrize("first_bias", [True, False])
def test_one_bias_of_its_own_is_enough_for_two_layers(first_bias: bool) -> None:
    folded, images, stock = _folded_shared(first_bias, True)
    stock.load_state_dict(stock_state_dict(folded), strict=True)
    assert _relative(folded, stock, images) <= 1e-6


class _TwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.trunk = nn.Sequential(self.stem, self.norm, nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.trunk(images)
        return features


def test_a_module_with_two_names_is_stored_under_both() -> None:
    stock, images = _lived_in(_TwoNames()), torch.randn(2, 3, 5, 5, generator=_generator())
    merged = _merged_after_training(stock, images)
    weights = stock_state_dict(merged)
    assert torch.equal(weights["0.stem.weight"], weights["0.trunk.0.weight"])
    stock.load_state_dict(weights, strict=True)
    assert _relative(merged, stock, images) <= 1e-6


class BatchNormAct2d(nn.BatchNorm2d):
    """As in timm, by name and by the names of its children."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop = nn.Identity()
        self.act = nn.PReLU(channels)

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.act(self.drop(super().forward(input)))
        return output


def test_the_activation_inside_a_batch_norm_keeps_its_parameters() -> None:
    stock = _lived_in(nn.Conv2d(3, 4, 3, bias=False), BatchNormAct2d(4))
    images = torch.randn(2, 3, 5, 5, generator=_generator())
    slopes = stock.get_parameter("1.act.weight").clone()
    folded = fold(stock, images)
    weights = stock_state_dict(folded)
    assert list(weights) == list(stock.state_dict()) and torch.equal(weights["1.act.weight"], slopes)
    stock.load_state_dict(weights, strict=True)
    assert _relative(folded, stock, images) <= 1e-6


def test_a_network_inside_a_larger_one_is_found_and_left_as_it_is() -> None:
    body = _lived_in(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.randn(2, 3, 5, 5, generator=_generator())
    model = nn.ModuleDict({"body": fold(body, images), "head": nn.Linear(4, 2)}).eval()
    before = fingerprint(model.state_dict())
    stock = nn.ModuleDict({"body": body, "head": nn.Linear(4, 2)})
    weights = stock_state_dict(model)
    stock.load_state_dict(weights, strict=True)
    assert torch.equal(stock.get_parameter("head.weight"), model.get_parameter("head.weight"))
    for tensor in weights.values():
        tensor.zero_()
    assert fingerprint(model.state_dict()) == before


def test_branches_and_parts_without_their_batch_norm_are_refused() -> None:
    images = torch.randn(2, 3, 5, 5, generator=_generator())
    hybrid = attach(_lived_in(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), images)
    with pytest.raises(InlayError, match=r"merge them with inlay\.branches\.merge first"):
        stock_state_dict(hybrid)
    folded = fold(_lived_in(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), images)
    assert isinstance(folded, nn.Sequential)
    with pytest.raises(InlayError, match=r"batch norm that '0' absorbed .* pass the whole network"):
        stock_state_dict(folded[:1])


def test_files_need_nothing_of_ours_and_gammas_lie_beside(tmp_path: Path) -> None:
    stock, images = _lived_in(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), torch.randn(2, 3, 5, 5, generator=_generator())
    merged = _merged_after_training(stock, images)
    path = tmp_path / "net.v2.safetensors"
    save_stock(merged, path)
    assert {file.name for file in tmp_path.iterdir()} == {"net.v2.safetensors", "net.v2.gammas.safetensors"}
    stock.load_state_dict(load_file(path), strict=True)
    kept = load_gammas(str(path))
    assert fingerprint(kept) == fingerprint(gammas(merged))
    assert fingerprint(load_gammas(tmp_path / "net.v2.gammas.safetensors")) == fingerprint(kept)
    assert _bit_equal(fold(stock, images, gammas=kept), merged)
    again = attach(stock, images, gammas=kept)
    assert _relative(again, merged, images) == 0


@pytest.mark.parametrize("name", ["net", "net.pt", "", "net.gammas.safetensors", "missing/net.safetensors"])
def test_a_path_that_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    folded = fold(_lived_in(nn.Linear(3, 4), nn.BatchNorm1d(4)), torch.zeros(2, 3))
    with pytest.raises(InlayError, match="cannot be written"):
        save_stock(folded, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_missing_gammas_are_named(tmp_path: Path) -> None:
    with pytest.raises(InlayError, match=r"net\.gammas\.safetensors cannot be read"):
        load_gammas(tmp_path / "net.safetensors")
