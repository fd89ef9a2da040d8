import pytest
import torch
from torch import Tensor, nn

from inlay.backbones import build, feature_size
from inlay.errors import InlayError


class _Twice(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images, images


def test_size_of_a_backbone_and_of_any_module() -> None:
    assert feature_size(build("resnet8x2"), torch.zeros(2, 3, 8, 8)) == 128
    assert feature_size(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), torch.zeros(4, 3, 2, 2)) == 5


def test_modes_and_statistics_are_kept() -> None:
    network = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(), nn.Flatten())
    network[1].eval()
    feature_size(network, torch.ones(2, 3, 2, 2))
    assert [module.training for module in network.modules()] == [True, True, False, True]
    assert torch.equal(network.state_dict()["0.running_mean"], torch.zeros(3))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Conv2d(3, 4, 1), r"returned shape \[2, 4, 5, 5\]"),
        (nn.Flatten(0, 1), r"returned shape \[6, 5, 5\]"),
        (nn.Flatten(0), "returned shape"),
        (_Twice(), "returned a tuple"),
    ],
)
def test_other_outputs_are_refused(network: nn.Module, message: str) -> None:
    with pytest.raises(InlayError, match=message):
        feature_size(network, torch.zeros(2, 3, 5, 5))
