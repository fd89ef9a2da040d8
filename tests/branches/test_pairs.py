from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from inlay.branches.pairs import Pair, find_pairs
from inlay.errors import InlayError

EXAMPLE = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class _Net(nn.Module):
    """Two convolutions and two norms, registered in an order that says nothing, run by a given function."""

    def __init__(self, run: Callable[["_Net", Tensor], object]) -> None:
        super().__init__()
        self.norm_b, self.norm_a = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.conv_a, self.conv_b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.run = run
        self.eval()

    def forward(self, images: Tensor) -> object:
        return self.run(self, images)


def test_pairs_follow_the_tensors_not_the_order_of_registration() -> None:
    net = _Net(lambda m, x: m.norm_a(m.conv_b(torch.relu(m.norm_b(m.conv_a(x))))))
    assert find_pairs(net, EXAMPLE) == [Pair("conv_a", "norm_b"), Pair("conv_b", "norm_a")]


def test_identities_and_reading_shapes_do_not_hide_a_pair() -> None:
    def run(m: _Net, x: Tensor) -> Tensor:
        y = m.conv_a(x)
        normed: Tensor = m.norm_a(nn.Identity()(y))
        return normed.reshape(y.shape[0], -1) * (1 if y.dtype == torch.float32 else 2)

    assert find_pairs(_Net(run), EXAMPLE) == [Pair("conv_a", "norm_a")]


@pytest.mark.parametrize(
    "run",
    [
        lambda m, x: m.conv_a(m.norm_a(x)),
        lambda m, x: m.norm_a(torch.relu(m.conv_a(x))),
        lambda m, x: m.norm_a(torch.relu_(m.conv_a(x))),
    ],
    ids=["norm before", "relu between", "relu in place between"],
)
def test_norms_that_see_something_else_are_no_pair(run: Callable[[_Net, Tensor], Tensor]) -> None:
    assert find_pairs(_Net(run), EXAMPLE) == []


def _raw_sum(m: _Net, x: Tensor) -> Tensor:
    y = m.conv_a(x)
    return m.norm_a(y) + y  # type: ignore[no-any-return]


def _raw_concatenation(m: _Net, x: Tensor) -> Tensor:
    y = m.conv_a(x)
    return torch.cat([m.norm_a(y), y])


def _raw_second_module(m: _Net, x: Tensor) -> Tensor:
    y = m.conv_a(x)
    return m.norm_a(y) + m.conv_b(y)  # type: ignore[no-any-return]


def _raw_return(m: _Net, x: Tensor) -> Tensor:
    y: Tensor = m.conv_a(x)
    m.norm_a(y)
    return y


def _two_norms(m: _Net, x: Tensor) -> Tensor:
    y = m.conv_a(x)
    return m.norm_a(y) + m.norm_b(y)  # type: ignore[no-any-return]


@pytest.mark.parametrize("run", [_raw_sum, _raw_concatenation, _raw_second_module, _raw_return, _two_norms])
def test_other_uses_of_a_convolutions_output_are_refused(run: Callable[[_Net, Tensor], Tensor]) -> None:
    with pytest.raises(InlayError, match=r"output of 'conv_a' is used by more than its batch norm 'norm_[ab]'"):
        find_pairs(_Net(run), EXAMPLE)


def test_a_convolution_called_twice_is_refused() -> None:
    net = _Net(lambda m, x: m.norm_a(m.conv_a(x)) + m.conv_a(x + 1))
    with pytest.raises(InlayError, match="'conv_a' is called 2 times"):
        find_pairs(net, EXAMPLE)


def test_a_norm_called_twice_is_refused() -> None:
    net = _Net(lambda m, x: m.norm_a(m.conv_b(m.norm_a(m.conv_a(x)))))
    with pytest.raises(InlayError, match="'norm_a' is called 2 times"):
        find_pairs(net, EXAMPLE)


@pytest.mark.parametrize(
    ("norm", "message"),
    [
        (nn.BatchNorm2d(3, affine=False), "'norm_a' has no scale and shift"),
        (nn.BatchNorm2d(3, track_running_stats=False), "'norm_a' has no running statistics"),
    ],
)
def test_norms_that_cannot_be_folded_are_refused(norm: nn.BatchNorm2d, message: str) -> None:
    net = _Net(lambda m, x: m.norm_a(m.conv_a(x)))
    net.norm_a = norm.eval()
    with pytest.raises(InlayError, match=message):
        find_pairs(net, EXAMPLE)


def test_subclasses_with_their_own_forward_are_refused() -> None:
    class Rectified(nn.BatchNorm2d):
        def forward(self, images: Tensor) -> Tensor:
            return torch.relu(super().forward(images))

    net = _Net(lambda m, x: m.norm_a(m.conv_a(x)))
    net.norm_a = Rectified(3).eval()
    with pytest.raises(InlayError, match="'norm_a' is a Rectified"):
        find_pairs(net, EXAMPLE)


def test_hooks_are_removed_even_if_the_network_fails() -> None:
    net = _Net(lambda m, x: m.norm_a(m.conv_a(x)))
    with pytest.raises(RuntimeError):
        find_pairs(net, torch.zeros(2, 5, 6, 6))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
