import json
import math
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from inlay.data.normalisation import Normalisation, normalisation_of


def noise(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_normalisation_equals_the_loops() -> None:
    images = (noise(7, 3, 4, 5) * 255).byte()
    found = normalisation_of(images)
    for channel in range(3):
        values = [value / 255 for value in images[:, channel].flatten().tolist()]
        mean = sum(values) / len(values)
        assert found.mean[channel] == pytest.approx(mean, abs=1e-14)
        variance = sum((value - mean) ** 2 for value in values) / len(values)
        assert found.std[channel] == pytest.approx(math.sqrt(variance), abs=1e-14)
    back = json.loads(json.dumps(asdict(found)))
    assert Normalisation(tuple(back["mean"]), tuple(back["std"])) == found
    normalised = found(images.double() / 255)
    torch.testing.assert_close(normalised.mean(dim=(0, 2, 3)), torch.zeros(3).double())
    torch.testing.assert_close(normalised.std(dim=(0, 2, 3), correction=0), torch.ones(3).double())


def test_normalisation_of_a_constant_channel_is_zero() -> None:
    images = (noise(4, 3, 4, 4) * 255).byte()
    images[:, 1] = 70
    found = normalisation_of(images)
    assert found.std[1] == 1
    assert found(images.float() / 255)[:, 1].abs().max() < 1e-6


def test_normalisation_rejects_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="std above 0"):
        Normalisation((0.5,), (0.0,))
    with pytest.raises(ValueError, match="as long as"):
        Normalisation((0.5,), (0.1, 0.2))
    with pytest.raises(ValueError, match=r"floats \[B, 1, H, W\]"):
        Normalisation((0.5,), (0.1,))(torch.zeros(1, 3, 2, 2))
    with pytest.raises(ValueError, match="uint8"):
        normalisation_of(torch.zeros(1, 1, 2, 2))
