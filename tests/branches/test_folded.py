import math

import pytest
import torch
from torch import nn

from inlay.branches.folded import FoldedConv, fused_kernel, stored_like


def _pair(bias: bool) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    generator = torch.Generator().manual_seed(0)
    conv = nn.Conv2d(2, 3, 3, padding=1, bias=bias, dtype=torch.float64)
    norm = nn.BatchNorm2d(3, eps=1e-3, dtype=torch.float64)
    assert norm.running_mean is not None and norm.running_var is not None
    with torch.no_grad():
        for parameter in [*conv.parameters(), *norm.parameters(), norm.running_mean]:
            parameter.normal_(generator=generator)
        norm.running_var.uniform_(0.1, 3, generator=generator)
    return conv, norm


@pytest.mark.parametrize("bias", [False, True])
def test_fused_kernel_against_loops(bias: bool) -> None:
    conv, norm = _pair(bias)
    weight, shift = fused_kernel(conv, norm)
    assert norm.running_mean is not None and norm.running_var is not None
    for c in range(3):
        factor = norm.weight[c].item() / math.sqrt(norm.running_var[c].item() + 1e-3)
        b = 0.0 if conv.bias is None else conv.bias[c].item()
        expected = norm.bias[c].item() + (b - norm.running_mean[c].item()) * factor
        assert shift[c].item() == pytest.approx(expected, abs=1e-14)
        for index, value in enumerate(conv.weight[c].flatten().tolist()):
            assert weight[c].flatten()[index].item() == pytest.approx(value * factor, abs=1e-14)


@pytest.mark.parametrize("bias", [False, True])
def test_folded_convolution_equals_convolution_then_norm(bias: bool) -> None:
    conv, norm = _pair(bias)
    folded = FoldedConv(conv, *fused_kernel(conv, norm), norm.weight)
    images = torch.randn(2, 2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(folded(images), norm.eval()(conv(images)), atol=1e-13)
    assert torch.equal(folded.gamma, norm.weight)
    assert not any(parameter.requires_grad for parameter in folded.parameters())


def test_a_norm_without_statistics_is_refused() -> None:
    with pytest.raises(ValueError, match="no running statistics"):
        fused_kernel(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, track_running_stats=False))


def test_folded_convolution_shares_no_memory_and_draws_no_random_numbers() -> None:
    conv, norm = _pair(True)
    state = torch.get_rng_state()
    folded = FoldedConv(conv, conv.weight, norm.bias, norm.weight)
    assert torch.equal(state, torch.get_rng_state())
    with torch.no_grad():
        norm.weight.zero_()
        conv.weight.zero_()
    assert folded.gamma.abs().min() > 0
    assert folded.weight.abs().min() > 0


def test_stored_like_takes_over_dtype_and_memory_format() -> None:
    reference = torch.zeros(4, 3, 3, 3).to(memory_format=torch.channels_last)
    stored = stored_like(torch.ones(4, 3, 3, 3, dtype=torch.float64), reference)
    assert stored.dtype == torch.float32
    assert stored.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match="expected shape"):
        stored_like(torch.ones(4), reference)
