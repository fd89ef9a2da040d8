import pytest
import torch
from torch import Tensor, nn

from inlay.engine import inference
from inlay.engine.inference import features_of


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


def _prepare(images: Tensor) -> Tensor:
    return images.float() / 255


@pytest.mark.parametrize("pixels_per_batch", [1, 3 * 36, 5 * 36, 10**6])
def test_features_equal_those_of_one_big_batch(pixels_per_batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_PIXELS_PER_BATCH", pixels_per_batch)
    network, images = _network(), _images()
    sizes: list[int] = []

    def prepare(chunk: Tensor) -> Tensor:
        sizes.append(len(chunk))
        return _prepare(chunk)

    found = features_of(network, images, prepare)
    whole = max(1, pixels_per_batch // 36)
    assert sizes == [min(whole, 10 - start) for start in range(0, 10, whole)]
    with torch.no_grad():
        wanted = network.eval()(_prepare(images))
    assert torch.allclose(found, wanted, atol=1e-6)
    assert not found.requires_grad


def test_features_are_float32() -> None:
    found = features_of(_network().double(), _images(), lambda images: _prepare(images).double())
    assert found.dtype == torch.float32


def test_every_module_keeps_its_mode_and_its_statistics() -> None:
    network = _network().train()
    network[1].eval()
    modes = [module.training for module in network.modules()]
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    features_of(network, _images(), _prepare)
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())
    features_of(network.eval(), _images(), _prepare)
    assert not any(module.training for module in network.modules())


def test_modes_come_back_after_an_error() -> None:
    network = _network().train()
    with pytest.raises(RuntimeError):
        features_of(network, _images(), lambda images: images[:, :2].float())
    assert all(module.training for module in network.modules())
