import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from branch_networks import lively
from inlay.branches.comparison import difference, full_precision_outputs
from inlay.branches.fold import fold
from inlay.branches.units import NOT_CALLED, Unit, find_units

IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class _Pair(nn.Module):
    """A convolution in front of a batch norm, and an idle layer."""

    def __init__(self, conv: nn.Module | None = None, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.idle = nn.Linear(2, 2)
        self.conv, self.norm = conv or nn.Conv2d(3, 3, 1), norm or nn.BatchNorm2d(3)
        lively(self).eval()

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.norm(self.conv(images))
        return out


def _is_folded_exactly(net: nn.Module) -> bool:
    net = net.double()
    assert find_units(net, IMAGES.double()).units == (Unit("conv", "conv-bn", "norm"),)
    outputs = [full_precision_outputs(model, IMAGES.double(), "example") for model in (net, fold(net, IMAGES.double()))]
    return difference(*outputs).relative <= 1e-10


def _reason(model: nn.Module, name: str, example: Tensor = IMAGES) -> str:
    """Return why a layer was refused."""
    findings = find_units(model, example)
    assert name not in [unit.name for unit in findings.units]
    return next(refusal.reason for refusal in findings.refusals if refusal.name == name)


class _Rectified(nn.BatchNorm2d):
    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(super().forward(images))


class _Called(nn.BatchNorm2d):
    def __call__(self, images: Tensor) -> Tensor:
        out: Tensor = super().__call__(images)
        return out * 2


class _Named(nn.BatchNorm2d):
    def __init__(self) -> None:
        super().__init__(3, eps=1e-3)


def _with_forward(module: nn.Module) -> nn.Module:
    forward = module.forward
    module.forward = lambda images: forward(images) * 2
    return module


def _hooked(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda module, args, output: output * 2)
    return module


@pytest.mark.parametrize(
    ("norm", "note"),
    [
        (nn.BatchNorm2d(3, track_running_stats=False), "its batch norm 'norm' has no running statistics"),
        (_hooked(nn.BatchNorm2d(3)), "its batch norm 'norm' has forward hooks"),
        (_Rectified(3), "its batch norm 'norm' is a _Rectified with a forward pass of its own"),
        (_Called(3), "its batch norm 'norm' is a _Called with a forward pass of its own"),
        (_with_forward(nn.BatchNorm2d(3)), "its batch norm 'norm' is a BatchNorm2d with a forward pass of its own"),
    ],
)
def test_norms_that_cannot_be_folded_say_why(norm: nn.Module, note: str) -> None:
    net = _Pair(norm=norm)
    unit = find_units(net, IMAGES).units[0]
    assert unit == Unit("conv", "conv", note=note)


def test_a_norm_class_that_only_changes_its_arguments_is_folded() -> None:
    assert _is_folded_exactly(_Pair(norm=_Named()))


def test_a_norm_with_activation_is_folded_unless_its_class_was_derived_again() -> None:
    class BatchNormAct2d(nn.BatchNorm2d):
        def __init__(self) -> None:
            super().__init__(3)
            self.drop, self.act = nn.Identity(), nn.ReLU()

        def forward(self, images: Tensor) -> Tensor:
            out: Tensor = self.act(self.drop(super().forward(images)))
            return out

    class Doubled(BatchNormAct2d):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) * 2

    assert _is_folded_exactly(_Pair(norm=BatchNormAct2d()))
    (unit,) = find_units(_Pair(norm=Doubled()), IMAGES).units
    assert unit.note == "its batch norm 'norm' is a Doubled with a forward pass of its own"


class _Depthwise(nn.Conv2d):
    """As transformers derives its depthwise convolutions: other arguments, nothing else."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, groups=channels, bias=False, padding_mode="zeros")


class _Padded(nn.Conv2d):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(F.pad(images, (1, 0, 1, 0)))


class _Standardised(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out: Tensor = super()._conv_forward(input, weight - weight.mean(), bias)
        return out


def test_a_layer_class_that_only_changes_its_arguments_is_a_unit() -> None:
    assert _is_folded_exactly(_Pair(conv=_Depthwise(3)))


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (_Padded(3, 3, 1), "this _Padded has a forward pass of its own"),
        (_Standardised(3, 3, 1), "this _Standardised has a forward pass of its own"),
        (_with_forward(nn.Conv2d(3, 3, 1)), "this Conv2d has a forward pass of its own"),
        (nn.ConvTranspose2d(3, 3, 1), "a ConvTranspose2d is not a convolution or linear layer that merges"),
        (weight_norm(nn.Conv2d(3, 3, 1)), "its weight is parametrized; remove the parametrization first"),
        (_hooked(nn.Conv2d(3, 3, 1)), "it has forward hooks, which may change its output; remove them first"),
        (
            nn.utils.spectral_norm(nn.Conv2d(3, 3, 1)),
            "it has forward hooks, which may change its output; remove them first",
        ),
    ],
)
def test_layers_that_cannot_take_a_branch_say_why(layer: nn.Module, reason: str) -> None:
    assert _reason(_Pair(conv=layer), "conv") == reason


def test_complex_weights_are_refused() -> None:
    net = nn.Sequential(nn.Linear(3, 2, dtype=torch.complex64)).eval()
    assert _reason(net, "0", torch.ones(2, 3, dtype=torch.complex64)) == "its weight is not a floating tensor"


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_layers_that_share_a_parameter_are_refused(part: str) -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)).eval()
    setattr(net[2], part, getattr(net[0], part))
    assert [_reason(net, name) for name in ("0", "2")] == ["its weights are shared by 0 and 2"] * 2


def test_layers_that_share_with_something_else_are_refused() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            out: Tensor = self.head(self.embed(tokens))
            return out

    assert _reason(Tied().eval(), "head", torch.tensor([[1, 2]])) == "its weights are shared by embed and head"


def test_layers_that_the_example_does_not_call_are_refused() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare, self.attention = nn.Linear(4, 4), nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, tokens: Tensor) -> Tensor:
            out: Tensor = self.attention(tokens, tokens, tokens)[0]
            return out

    findings = find_units(Attention().eval(), torch.ones(2, 3, 4))
    assert findings.units == ()
    assert [(refusal.name, refusal.reason) for refusal in findings.refusals] == [
        ("spare", NOT_CALLED),
        ("attention.out_proj", NOT_CALLED),
    ]
