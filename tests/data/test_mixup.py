import pytest
import torch
from scipy import stats

from inlay.data.draws import Draws
from inlay.data.mixup import beta, blended, blended_targets, share_of_batch


@pytest.mark.parametrize("power", [0.4, 0.8, 1.0])
def test_draws_have_the_beta_distribution(power: float) -> None:
    drawn = beta(Draws(7, torch.arange(20_000)), power)
    assert drawn.dtype == torch.float32 and drawn.min() >= 0 and drawn.max() <= 1
    assert stats.kstest(drawn.double().numpy(), stats.beta(power, power).cdf).pvalue > 0.01


@pytest.mark.parametrize("power", [0.0, 1.5, -1.0, float("nan")])
def test_other_powers_are_refused(power: float) -> None:
    with pytest.raises(ValueError, match="up to 1"):
        beta(Draws(0, torch.arange(2)), power)


def test_the_share_of_a_batch_is_a_function_of_its_key() -> None:
    shares = torch.stack([share_of_batch(torch.tensor(key), 0.8) for key in range(300)])
    assert shares.shape == (300,) and len(set(shares.tolist())) == 300
    assert torch.equal(shares[4], share_of_batch(torch.tensor(4), 0.8))
    assert stats.kstest(shares.double().numpy(), stats.beta(0.8, 0.8).cdf).pvalue > 0.01


def test_shares_are_drawn_without_waiting_for_the_device() -> None:
    # On this device there are no values, so that whatever needs one fails.
    assert share_of_batch(torch.empty((), dtype=torch.int64, device="meta"), 0.8).shape == ()


def test_images_are_blended_with_their_counterparts() -> None:
    images = torch.randn(5, 1, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    share = torch.tensor(0.3, dtype=torch.float64)
    found = blended(images, share)
    for row in range(5):
        torch.testing.assert_close(found[row], 0.3 * images[row] + 0.7 * images[4 - row])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_targets_are_blended_like_the_images(smoothing: float) -> None:
    labels, share = torch.tensor([2, 0, 0, 3]), torch.tensor(0.25)
    found = blended_targets(labels, 4, share, smoothing)
    for row in range(4):
        for label in range(4):
            own, other = ((1 - smoothing) * float(labels[place] == label) + smoothing / 4 for place in (row, 3 - row))
            assert found[row, label].item() == pytest.approx(0.25 * own + 0.75 * other)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(4))
