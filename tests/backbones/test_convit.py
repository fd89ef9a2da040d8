import math

import pytest
import torch
from torch import Tensor

from inlay.backbones.convit import Convit, ConvitBlock, GatedPositionalAttention
from inlay.backbones.stochastic_depth import kept_paths
from inlay.data.draws import Draws
from slow_losses import softmax


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _scrambled(module: torch.nn.Module, seed: int = 5) -> None:
    """Give every parameter other values than those it starts with."""
    source = _generator(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=source))


def _product(matrix: Tensor, vector: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix.tolist()]


def _slow_attention(layer: GatedPositionalAttention, tokens: Tensor, grid: tuple[int, int]) -> list[list[float]]:
    """The attention of one image [N, D] as the formulas of ConViT have it, number by number."""
    count, width = tokens.shape
    size = width // layer.heads
    both = [_product(layer.query_key.weight, token) for token in tokens.tolist()]
    values = [_product(layer.value.weight, token) for token in tokens.tolist()]
    mixed = [[0.0] * width for _ in range(count)]
    for head in range(layer.heads):
        own = range(head * size, (head + 1) * size)
        gate = 1 / (1 + math.exp(-layer.gates[head].item()))
        across, along, square = layer.slopes[head].tolist()
        for i in range(count):
            content, position = [], []
            for j in range(count):
                content.append(sum(both[i][c] * both[j][width + c] for c in own) / math.sqrt(size))
                x, y = j % grid[1] - i % grid[1], j // grid[1] - i // grid[1]
                position.append(across * x + along * y + square * (x * x + y * y))
            weights = [(1 - gate) * a + gate * b for a, b in zip(softmax(content), softmax(position), strict=True)]
            for c in own:
                mixed[i][c] = sum(weight * values[j][c] for j, weight in enumerate(weights))
    return [
        [a + b for a, b in zip(_product(layer.projection.weight, row), layer.projection.bias.tolist(), strict=True)]
        for row in mixed
    ]


def test_attention_equals_the_loops() -> None:
    grid = (2, 3)
    layer = GatedPositionalAttention(6, 2, grid, _generator()).double()
    _scrambled(layer)
    tokens = torch.randn(2, 6, 6, generator=_generator(1), dtype=torch.float64)
    expected = torch.tensor([_slow_attention(layer, image, grid) for image in tokens], dtype=torch.float64)
    torch.testing.assert_close(layer(tokens), expected)


def test_heads_begin_as_the_taps_of_a_convolution() -> None:
    layer = GatedPositionalAttention(24, 12, (5, 5), _generator())
    seen = layer.positional()[:, 12].argmax(dim=1)
    # From the middle patch the first nine heads look at its neighbours, column by column.
    assert seen[:9].tolist() == [5 * (2 + y) + 2 + x for x in (-1, 0, 1) for y in (-1, 0, 1)]
    assert layer.slopes[9:].abs().max() < 0.1
    assert torch.equal(layer.value.weight, torch.eye(24)) and torch.equal(layer.gates, torch.ones(12))


def test_attention_by_position_needs_no_content() -> None:
    layer = GatedPositionalAttention(8, 4, (3, 3), _generator())
    with torch.no_grad():
        layer.gates.fill_(40.0)
    tokens = torch.randn(2, 9, 8, generator=_generator(2))
    before = layer(tokens)
    with torch.no_grad():
        layer.query_key.weight.mul_(-7)
    torch.testing.assert_close(layer(tokens), before)
    with torch.no_grad():
        layer.gates.fill_(0.0)
    assert not torch.allclose(layer(tokens), before, atol=1e-4)


def test_a_block_adds_what_is_kept() -> None:
    block = ConvitBlock(8, 4, (3, 3), _generator())
    _scrambled(block)
    tokens = torch.randn(3, 9, 8, generator=_generator(3))
    factors = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 0.5]])
    kept = (factors[:, :1, None], factors[:, 1:, None])
    found = block(tokens, kept)
    assert torch.equal(found[0], tokens[0])
    torch.testing.assert_close(found[1], block(tokens)[1])
    between = tokens[2:] + 2 * block.attention(block.norm1(tokens[2:]))
    torch.testing.assert_close(found[2:], between + 0.5 * block.mlp(block.norm2(between)))


def test_kept_paths_leave_out_the_share_that_is_asked_for() -> None:
    kept = kept_paths(Draws(3, torch.arange(4000)), 0.25, 3)
    assert kept is not None
    for part in kept:
        assert part.shape == (4000, 3, 1)
        assert sorted(set(part.flatten().tolist())) == pytest.approx([0, 4 / 3])
        assert part.mean().item() == pytest.approx(1, abs=0.03)
    assert not torch.equal(kept[0], kept[1]) and not torch.equal(kept[0][:, 0], kept[0][:, 1])
    again = kept_paths(Draws(3, torch.arange(4000)), 0.25, 3)
    assert again is not None and torch.equal(kept[0], again[0])
    assert kept_paths(Draws(3, torch.arange(4)), 0.0) is None


def test_tokens_are_those_of_the_patches_row_by_row() -> None:
    network = Convit(1, (4, 6), 2, 8, 2, 0, _generator())
    images = torch.zeros(1, 1, 4, 6)
    plain = network(images)
    images[0, 0, 2, 5] = 1.0
    changed = (network(images) - plain).abs().sum(dim=2)[0]
    assert changed.nonzero().flatten().tolist() == [5]
    assert network.patches.bias is not None
    torch.testing.assert_close(plain[0], network.patches.bias + network.positions)


def test_weights_depend_on_the_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, second, other = (Convit(3, (8, 8), 4, 16, 4, 2, _generator(seed)) for seed in (5, 5, 6))
    assert torch.equal(before, torch.get_rng_state())
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    assert not torch.equal(first.positions, other.positions)
    assert not torch.equal(first.patches.weight, other.patches.weight)


@pytest.mark.parametrize(("size", "heads", "why"), [((8, 9), 2, "8 x 9 pixels"), ((8, 8), 3, "multiple of the 3")])
def test_other_sizes_are_refused(size: tuple[int, int], heads: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Convit(1, size, 2, 8, heads, 1)
