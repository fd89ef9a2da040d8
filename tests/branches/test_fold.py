import copy

import pytest
import torch
from torch import Tensor, nn

from branch_networks import NETWORKS, Network, Pooled, RawUse, SharedNorm, lively, relative_gap
from inlay.backbones import build
from inlay.branches import Folded, attach, count_parameters, fold, folded_layers, gammas
from inlay.branches.folded import FoldedNorm
from inlay.errors import InlayError

FLOAT64 = torch.float64
PLAIN = NETWORKS["conv2d"]
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def _images(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(9)).to(dtype)


def _backbone(name: str = "resnet8") -> nn.Module:
    return lively(build(name, generator=torch.Generator().manual_seed(0))).eval()


def _merged_plain(dtype: torch.dtype = torch.float32, bias: float = 0.0) -> nn.Module:
    """A network whose batch norms only add a bias."""
    model = Pooled(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, eps=1e-3))
    model.to(dtype)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_var is not None:
            nn.init.constant_(module.running_var, 1 - module.eps)
            nn.init.constant_(module.bias, bias)
    return model.eval()


@every_network
def test_folding_is_exact_in_float64(network: Network) -> None:
    model = network.model(FLOAT64)
    for seed in range(2):
        images = network.images(seed, FLOAT64)
        folded = fold(model, network.images(9, FLOAT64))
        with torch.no_grad():
            assert relative_gap(model(images), folded(images)) <= 1e-10


@every_network
def test_folding_stays_within_1e_5_in_float32(network: Network) -> None:
    model = network.model()
    with torch.no_grad():
        assert relative_gap(model(network.images()), fold(model, network.images(9))(network.images())) <= 1e-5


@pytest.mark.parametrize(("name", "units"), [("resnet8", 7), ("resnet20", 19), ("resnet18-1x1", 20)])
def test_every_convolution_of_a_backbone_is_folded(name: str, units: int) -> None:
    model = _backbone(name).double()
    folded = fold(model, _images(FLOAT64))
    with torch.no_grad():
        assert relative_gap(model(_images(FLOAT64)), folded(_images(FLOAT64))) <= 1e-10
    assert len(folded_layers(folded)) == units
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    assert not any(module.training for module in folded.modules())


def test_parameter_count_of_the_protocol() -> None:
    folded = fold(build("resnet18", generator=torch.Generator().manual_seed(0)).eval(), _images())
    assert count_parameters(folded) == 10_991_104


@every_network
def test_names_are_kept_and_every_folded_norm_is_stood_for(network: Network) -> None:
    model = network.model()
    folded = fold(model, network.images())
    assert [name for name, _ in folded.named_modules()] == [name for name, _ in model.named_modules()]
    for name, layer in folded_layers(folded).items():
        assert isinstance(layer, type(model.get_submodule(name)))
        assert any(layer.absorbed is module for module in folded.modules())
    assert any(isinstance(module, nn.BatchNorm2d) for module in folded.modules()) == isinstance(model, RawUse)


def test_gammas_are_the_scales_of_the_norms() -> None:
    model = PLAIN.model()
    found = gammas(fold(model, PLAIN.images()))
    assert set(found) == {"layers.0", "layers.3", "layers.6"}
    assert torch.equal(found["layers.0"], model.get_parameter("layers.1.weight"))
    assert torch.equal(found["layers.3"], torch.ones(4))
    found["layers.0"].zero_()
    assert model.get_parameter("layers.1.weight").abs().min() > 0


def test_layers_that_share_a_norm_share_what_stands_for_it() -> None:
    network = NETWORKS["shared norm"]
    folded = fold(network.model(), network.images())
    assert isinstance(folded, SharedNorm) and isinstance(folded.norm, FoldedNorm)
    layers = folded_layers(folded)
    assert layers["left"].absorbed is layers["right"].absorbed is folded.norm


def test_a_module_with_two_names_is_folded_under_both() -> None:
    model = Pooled(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model.add_module("alias", model.layers[0])
    folded = fold(lively(model).eval(), _images())
    assert isinstance(folded.alias, Folded) and folded.alias is folded.get_submodule("layers.0")


def test_a_network_without_batch_norms_is_copied_and_frozen() -> None:
    network = NETWORKS["no norm"]
    model = network.model()
    folded = fold(model, network.images())
    assert not folded_layers(folded) and gammas(folded) == {}
    assert torch.equal(folded(network.images()), model(network.images()))
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_folding_twice_changes_nothing_more() -> None:
    folded = fold(PLAIN.model(), PLAIN.images())
    again = fold(folded, PLAIN.images())
    assert folded.state_dict().keys() == again.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in folded.state_dict().items())


def test_the_original_is_left_as_it_was() -> None:
    class Counting(Pooled):
        """Counts its calls even in eval mode."""

        calls: Tensor

        def forward(self, images: Tensor) -> Tensor:
            self.calls = self.calls + 1
            return super().forward(images)

    model = Counting(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model.register_buffer("calls", torch.zeros(()))
    lively(model).eval()
    before = copy.deepcopy(model.state_dict())
    classes = [type(module) for module in model.modules()]
    folded = fold(model, _images())
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert [type(module) for module in model.modules()] == classes
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert folded.calls == 0


def test_dtype_and_channels_last_are_kept() -> None:
    model = _backbone().double()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for layer in folded_layers(fold(model, _images(FLOAT64))).values():
        weight = layer.get_parameter("weight")
        assert weight.dtype == layer.get_parameter("bias").dtype == layer.gamma.dtype == FLOAT64
        assert weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.bfloat16, 5e-2), (torch.float16, 5e-3)])
def test_half_precision_networks_fold_within_their_rounding(dtype: torch.dtype, allowed: float) -> None:
    model = _backbone().to(dtype)
    folded = fold(model, _images(dtype))
    assert {parameter.dtype for parameter in folded.parameters()} == {dtype}
    with torch.no_grad():
        assert 0 < relative_gap(model(_images(dtype)).float(), folded(_images(dtype)).float()) <= allowed


def test_given_gammas_are_kept_and_the_function_is_the_same() -> None:
    model = PLAIN.model()
    given = {name: gamma + 1 for name, gamma in gammas(fold(model, PLAIN.images())).items()}
    folded = fold(model, PLAIN.images(), gammas=given)
    assert all(torch.equal(gamma, given[name]) for name, gamma in gammas(folded).items())
    assert torch.equal(folded(PLAIN.images()), fold(model, PLAIN.images())(PLAIN.images()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers.3": None}, r"no entry for 'layers\.3'"),
        ({"layers.3": torch.ones(5)}, r"'layers\.3' has shape \[5\] instead of \[4\]"),
        ({"layers.3": torch.ones(4, 1)}, r"has shape \[4, 1\] instead"),
        ({"layers.3": torch.tensor([1, 1, 1, torch.nan])}, r"gamma of 'layers\.3' is not finite"),
        ({"layer9": torch.ones(4)}, "'layer9', but the network has no such layer"),
    ],
)
def test_gammas_that_do_not_fit_are_refused(change: dict[str, Tensor | None], message: str) -> None:
    model = PLAIN.model()
    changed = gammas(fold(model, PLAIN.images())) | change
    given = {name: gamma for name, gamma in changed.items() if gamma is not None}
    with pytest.raises(InlayError, match=message):
        fold(model, PLAIN.images(), gammas=given)


def test_gammas_for_a_network_that_holds_its_own_are_refused() -> None:
    folded = fold(PLAIN.model(), PLAIN.images())
    with pytest.raises(InlayError, match="holds its gamma; leave gammas out"):
        fold(folded, PLAIN.images(), gammas=gammas(folded))


@pytest.mark.parametrize("dtype", [torch.float32, FLOAT64])
@pytest.mark.parametrize("bias", [0.0, 0.7])
def test_norms_that_only_add_a_bias_are_refused_without_gammas(dtype: torch.dtype, bias: float) -> None:
    model = _merged_plain(dtype, bias)
    with pytest.raises(InlayError, match=r"'layers\.1' only adds a bias.*gamma is lost; pass the gammas"):
        fold(model, _images(dtype))
    with pytest.raises(InlayError, match="gamma is lost"):
        attach(model, _images(dtype))
    given = {"layers.0": torch.full((4,), 2.0), "layers.3": torch.full((4,), 3.0)}
    folded = fold(model, _images(dtype), gammas=given)
    assert all(torch.equal(gamma, given[name].to(dtype)) for name, gamma in gammas(folded).items())
    for name in given:
        assert torch.equal(folded.get_parameter(f"{name}.weight"), model.get_parameter(f"{name}.weight"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_norms_that_only_add_a_bias_are_refused_too(dtype: torch.dtype) -> None:
    with pytest.raises(InlayError, match="only adds a bias"):
        fold(_merged_plain(dtype, bias=0.5), _images(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, FLOAT64, torch.bfloat16])
def test_new_networks_are_accepted(dtype: torch.dtype) -> None:
    model = build("resnet8", generator=torch.Generator().manual_seed(0)).eval().to(dtype)
    assert all(torch.equal(gamma, torch.ones_like(gamma)) for gamma in gammas(fold(model, _images(dtype))).values())


def test_a_layer_whose_weights_are_read_elsewhere_keeps_them() -> None:
    class ReadsWeight(Pooled):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) + self.get_parameter("layers.0.weight").sum()

    model = lively(ReadsWeight(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))).eval()
    assert torch.equal(fold(model, _images())(_images()), model(_images()))


def test_a_network_that_is_random_in_eval_mode_is_refused() -> None:
    class Noisy(Pooled):
        def forward(self, images: Tensor) -> Tensor:
            out = super().forward(images)
            return out + torch.randn_like(out)

    with pytest.raises(InlayError, match="deterministic in eval mode"):
        fold(Noisy(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval(), _images())


def test_unfit_networks_and_examples_are_refused() -> None:
    model = PLAIN.model()
    with pytest.raises(InlayError, match=r"training mode; call model\.eval\(\)"):
        fold(copy.deepcopy(model).train(), PLAIN.images())
    with pytest.raises(InlayError, match="fails on the example"):
        fold(model, PLAIN.images()[:, :2])
    with pytest.raises(InlayError, match="merge them"):
        fold(attach(model, PLAIN.images()), PLAIN.images())
    with torch.no_grad():
        model.get_parameter("layers.0.weight")[0, 0, 0, 0] = torch.nan
    with pytest.raises(InlayError, match=r"'layers\.0\.weight' holds values that are not finite"):
        fold(model, PLAIN.images())
