import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from inlay.engine import passes
from inlay.engine.passes import Precision, pass_views


def _network() -> nn.Sequential:
    """Layers that treat each image apart; in eval mode batch norm does so too."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
        )
        network(torch.randn(16, 3, 9, 9))
    return network.eval()


def _views(count: int, dtype: torch.dtype = torch.float32, side: int = 9) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(1)
    return tuple(torch.randn(6, 3, side, side, generator=draw).to(dtype) for _ in range(count))


class Spy(nn.Module):
    """Remembers the number and the types of the batches that pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.sizes: list[int] = []
        self.dtypes: list[torch.dtype] = []

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(functional.adaptive_avg_pool2d(inputs, 2).flatten(1))
        self.sizes.append(len(inputs))
        self.dtypes.append(outputs.dtype)
        return outputs


@pytest.mark.parametrize("count", [1, 2, 3])
def test_features_are_those_of_each_view_apart(count: int) -> None:
    network, views = _network(), _views(count)
    found = pass_views(network, views, "float32")
    assert len(found) == count
    for features, view in zip(found, views, strict=True):
        assert features.dtype == torch.float32
        torch.testing.assert_close(features, network(view), rtol=1e-5, atol=1e-6)
    if count > 1:
        assert not torch.allclose(found[0], found[1], atol=0.05)


def test_views_share_the_statistics_of_batch_norm() -> None:
    network, views = _network().train(), _views(2)
    first, second = pass_views(network, views, "float32")
    together = network(torch.cat(views))
    torch.testing.assert_close(torch.cat([first, second]), together)
    assert not torch.allclose(first, network(views[0]), atol=1e-3)


def test_there_is_one_pass() -> None:
    spy = Spy()
    pass_views(spy, tuple(torch.randn(5, 1, 2, 2) for _ in range(3)), "float32")
    assert spy.sizes == [15]


def test_gradients_reach_each_view() -> None:
    network, views = _network(), tuple(view.requires_grad_() for view in _views(2))
    first, second = pass_views(network, views, "float32")
    (first.sum() + 3 * second.sum()).backward()  # type: ignore[no-untyped-call]
    for view, factor in zip(views, (1, 3), strict=True):
        wanted = view.detach().clone().requires_grad_()
        (factor * network(wanted).sum()).backward()
        assert view.grad is not None and wanted.grad is not None and bool(view.grad.any())
        torch.testing.assert_close(view.grad, wanted.grad)


def test_bfloat16_gives_full_features_close_to_those_of_float32() -> None:
    network, views = _network(), _views(2)
    found, exact = (pass_views(network, views, precision) for precision in ("bfloat16", "float32"))
    for features, wanted in zip(found, exact, strict=True):
        assert features.dtype == torch.float32 and not torch.equal(features, wanted)
        torch.testing.assert_close(features, wanted, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("precision", ["auto", "float32", "bfloat16"])
def test_float64_is_never_lowered(precision: Precision) -> None:
    network, views = _network().double(), _views(2, torch.float64, side=32)
    for features, view in zip(pass_views(network, views, precision), views, strict=True):
        assert features.dtype == torch.float64
        torch.testing.assert_close(features, network(view), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
@pytest.mark.parametrize("side", [2, 28])
def test_the_network_computes_in_the_precision_asked_for(precision: Precision, dtype: torch.dtype, side: int) -> None:
    spy = Spy()
    (features,) = pass_views(spy, (torch.randn(3, 1, side, side),), precision)
    assert spy.dtypes == [dtype] and features.dtype == torch.float32


@pytest.mark.parametrize("able", [True, False])
@pytest.mark.parametrize(("height", "width"), [(27, 64), (64, 27), (28, 28)])
def test_auto_is_bfloat16_for_large_images_on_a_cpu_that_multiplies_it(
    height: int, width: int, able: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "_cpu_multiplies_bfloat16", lambda: able)
    spy = Spy()
    pass_views(spy, (torch.randn(3, 1, height, width),), "auto")
    assert spy.dtypes == [torch.bfloat16 if able and min(height, width) >= 28 else torch.float32]
