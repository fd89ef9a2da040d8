import math

import torch

from inlay.backbones.initialisation import kaiming_normal_


def test_same_generator_state_gives_same_kernel_for_every_dtype_and_memory_format() -> None:
    shape = (8, 4, 3, 3)
    single = kaiming_normal_(torch.empty(shape), torch.Generator().manual_seed(3))
    double = kaiming_normal_(torch.empty(shape, dtype=torch.float64), torch.Generator().manual_seed(3))
    last = torch.empty(shape).to(memory_format=torch.channels_last)
    kaiming_normal_(last, torch.Generator().manual_seed(3))
    assert torch.equal(single.double(), double)
    assert torch.equal(single, last)
    assert last.is_contiguous(memory_format=torch.channels_last)


def test_spread_follows_fan_out() -> None:
    weight = kaiming_normal_(torch.empty(64, 128, 3, 3), torch.Generator().manual_seed(0))
    expected = math.sqrt(2 / (64 * 9))
    assert abs(weight.std().item() - expected) < 0.02 * expected
    assert abs(weight.mean().item()) < 0.02 * expected
