import pytest
import torch
from torch import Tensor, nn

from inlay.engine import inference
from inlay.engine.feed import Feed, HostPixels, ResidentFeed, StreamedFeed
from inlay.engine.inference import features_of, first_images


def _network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        network(torch.randn(16, 3, 6, 6))
    return network


def _images(count: int = 10) -> Tensor:
    return torch.randint(256, (count, 3, 6, 6), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def _feed(streamed: bool = False) -> Feed:
    return StreamedFeed(HostPixels(_images()), torch.device("cpu")) if streamed else ResidentFeed(_images())


def _prepare(images: Tensor) -> Tensor:
    return images.float() / 255


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("pixels_per_batch", [1, 3 * 36, 5 * 36, 10**6])
def test_features_equal_those_of_one_big_batch(
    pixels_per_batch: int, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "_PIXELS_PER_BATCH_ON_CPU", pixels_per_batch)
    network, images = _network(), _images()
    sizes: list[int] = []

    def prepare(chunk: Tensor) -> Tensor:
        sizes.append(len(chunk))
        return _prepare(chunk)

    found = features_of(network, _feed(streamed), prepare)
    whole = max(1, pixels_per_batch // 36)
    assert sizes == [min(whole, 10 - start) for start in range(0, 10, whole)]
    with torch.no_grad():
        wanted = network.eval()(_prepare(images))
    assert torch.allclose(found, wanted, atol=1e-6)
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_features_are_at_least_float32(given: torch.dtype, wanted: torch.dtype) -> None:
    found = features_of(_network().to(given), _feed(), lambda images: _prepare(images).to(given))
    assert found.dtype == wanted


def test_every_module_keeps_its_mode_and_its_statistics() -> None:
    network = _network().train()
    network[1].eval()
    modes = [module.training for module in network.modules()]
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    features_of(network, _feed(), _prepare)
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())
    features_of(network.eval(), _feed(), _prepare)
    assert not any(module.training for module in network.modules())


def test_a_process_without_a_share_has_no_features_and_keeps_its_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_own_share", lambda feed: [])
    network = _network().train()
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    assert features_of(network, _feed(), _prepare).shape == (0, 4)
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())


def test_modes_come_back_after_an_error() -> None:
    network = _network().train()
    with pytest.raises(RuntimeError):
        features_of(network, _feed(), lambda images: images[:, :2].float())
    assert all(module.training for module in network.modules())


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("count", [1, 4, 10, 99])
def test_first_images_are_the_first_ones_or_all(count: int, streamed: bool) -> None:
    assert torch.equal(first_images(_feed(streamed), count), _images()[:count])


def test_how_far_it_is_is_told_before_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_PIXELS_PER_BATCH_ON_CPU", 4 * 36)
    told: list[tuple[int, int]] = []
    features_of(_network(), _feed(), _prepare, lambda done, total: told.append((done, total)))
    assert told == [(0, 3), (1, 3), (2, 3)]
