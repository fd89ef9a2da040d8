import json
import math
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from inlay.data import ImageSet
from inlay.data.normalisation import Normalisation, normalisation_of


def noise(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def counted(images: Tensor) -> Tensor:
    return ImageSet(images, tuple(map(str, range(len(images))))).level_counts()


def test_normalisation_equals_the_loops() -> None:
    images = (noise(7, 3, 4, 5) * 255).byte()
    found = normalisation_of(counted(images))
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
    found = normalisation_of(counted(images))
    assert found.std[1] == 1
    assert found(images.float() / 255)[:, 1].abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_type_and_memory_format_stay(dtype: torch.dtype) -> None:
    images = noise(2, 3, 4, 5).to(dtype)
    normalise = Normalisation((0.5, 0.25, 0.125), (0.5, 2.0, 4.0))
    for format in (torch.contiguous_format, torch.channels_last):
        normalised = normalise(images.contiguous(memory_format=format))
        assert normalised.dtype == dtype and normalised.is_contiguous(memory_format=format)
        for channel, (mean, std) in enumerate(zip(normalise.mean, normalise.std, strict=True)):
            expected = (images[:, channel].double() - mean) / std
            tolerance = 2 * torch.finfo(dtype).eps
            torch.testing.assert_close(normalised[:, channel].double(), expected, atol=tolerance, rtol=tolerance)


def test_normalisation_is_one_graph() -> None:
    normalise = Normalisation((0.5, 0.25, 0.125), (0.5, 2.0, 4.0))
    images = noise(2, 3, 4, 5)
    compiled = torch.compile(normalise.__call__, fullgraph=True, dynamic=False, backend="aot_eager")
    torch.testing.assert_close(compiled(images), normalise(images))


def test_normalisation_rejects_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="std above 0"):
        Normalisation((0.5,), (0.0,))
    with pytest.raises(ValueError, match="as long as"):
        Normalisation((0.5,), (0.1, 0.2))
    with pytest.raises(ValueError, match=r"floats \[B, 1, H, W\]"):
        Normalisation((0.5,), (0.1,))(torch.zeros(1, 3, 2, 2))
    for wrong in (torch.zeros(3, 256), torch.ones(3, 255), torch.ones(256)):
        with pytest.raises(ValueError, match=r"must be \[C, 256\] and not all 0"):
            normalisation_of(wrong)
