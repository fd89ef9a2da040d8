"""A vision transformer whose attention begins as that of a convolution: ConViT (d'Ascoli et al., ICML 2021)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from inlay.backbones.stochastic_depth import Kept, added

__all__ = [
    "Convit",
    "ConvitBlock",
    "GatedPositionalAttention",
    "Mlp",
    "drawn",
    "merged_heads",
    "split_heads",
    "transformer_linear",
]

_STD = 0.02


def drawn(*shape: int, generator: torch.Generator | None) -> nn.Parameter:
    """Return a parameter of normal values with the standard deviation 0.02 of vision transformers."""
    device = torch.device("cpu") if generator is None else generator.device
    return nn.Parameter(_STD * torch.randn(*shape, generator=generator, device=device))


def transformer_linear(inputs: int, outputs: int, bias: bool, generator: torch.Generator | None) -> nn.Linear:
    """Return a linear layer with weights from `drawn` and without shift."""
    # On the meta device torch's own initialisation draws nothing from the global generator.
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta").to_empty(device="cpu")
    layer.weight = drawn(outputs, inputs, generator=generator)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """Turn tokens [B, N, D] into those of each head, [B, heads, N, D / heads]."""
    return tokens.reshape(*tokens.shape[:2], heads, -1).transpose(1, 2)


def merged_heads(tokens: Tensor) -> Tensor:
    """Undo `split_heads`."""
    return tokens.transpose(1, 2).flatten(2)


class GatedPositionalAttention(nn.Module):
    """Attention by content and by position, mixed by a gate for each head.

    With the gate sigma(g) of a head its output is (1 - sigma(g)) · content attention + sigma(g) · positional attention.
    The positional scores of an offset (x, y) are a linear map of (x, y, x² + y²). They start at -|offset - centre|² up
    to a constant, with the centres of the first k² heads on a k × k square, k² the largest square up to the number of
    heads: a soft k × k convolution. Values start as the tokens themselves, gates at sigma(1). A shift of the positional
    scores would cancel in their softmax, so there is none.

    Args:
        width: Size D of tokens, a multiple of the heads.
        heads: Number of heads.
        grid: Rows and columns of the patches.
        generator: Source of the weights.
    """

    offsets: Tensor

    def __init__(self, width: int, heads: int, grid: tuple[int, int], generator: torch.Generator | None) -> None:
        super().__init__()
        self.heads = heads
        self.query_key = transformer_linear(width, 2 * width, False, generator)
        self.value = transformer_linear(width, width, False, generator)
        self.projection = transformer_linear(width, width, True, generator)
        self.slopes = drawn(heads, 3, generator=generator)
        self.gates = nn.Parameter(torch.ones(heads))
        self.register_buffer("offsets", _offsets(grid), persistent=False)
        with torch.no_grad():
            self.value.weight.copy_(torch.eye(width))
            centres = _centres(math.isqrt(heads))
            self.slopes[: len(centres), :2] = 2 * centres
            self.slopes[: len(centres), 2] = -1

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens [B, N, D] to [B, N, D]."""
        query, key = (split_heads(part, self.heads) for part in self.query_key(tokens).chunk(2, dim=2))
        value = split_heads(self.value(tokens), self.heads)
        content = functional.scaled_dot_product_attention(query, key, value)
        by_position = self.positional() @ value
        share = torch.sigmoid(self.gates).to(content.dtype).view(-1, 1, 1)
        mixed: Tensor = self.projection(merged_heads(torch.lerp(content, by_position.to(content.dtype), share)))
        return mixed

    def positional(self) -> Tensor:
        """Return the attention by position from each patch to each, [heads, N, N]; it is the same for all images."""
        # Summed one by one, as a product of matrices may run in a precision that is too coarse for squares.
        scores = (self.offsets * self.slopes[:, None, None]).sum(dim=3)
        return torch.softmax(scores, dim=2)


class Mlp(nn.Module):
    """Two linear layers with a GELU between them, the inner size four times the outer.

    Args:
        width: Size D of tokens.
        generator: Source of the weights.
    """

    def __init__(self, width: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.fc1 = transformer_linear(width, 4 * width, True, generator)
        self.activation = nn.GELU()
        self.fc2 = transformer_linear(4 * width, width, True, generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens [B, N, D] to [B, N, D]."""
        changed: Tensor = self.fc2(self.activation(self.fc1(tokens)))
        return changed


class ConvitBlock(nn.Module):
    """Gated positional attention and an MLP, each behind a layer norm and added to the tokens.

    Args:
        width: Size D of tokens.
        heads: Number of heads.
        grid: Rows and columns of the patches.
        generator: Source of the weights.
    """

    def __init__(self, width: int, heads: int, grid: tuple[int, int], generator: torch.Generator | None) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = GatedPositionalAttention(width, heads, grid, generator)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, generator)

    def forward(self, tokens: Tensor, kept: Kept = None) -> Tensor:
        """Map tokens [B, N, D] to [B, N, D]; `kept` has factors [B, 1, 1]."""
        of_attention, of_mlp = kept or (None, None)
        tokens = added(tokens, self.attention(self.norm1(tokens)), of_attention)
        return added(tokens, self.mlp(self.norm2(tokens)), of_mlp)


class Convit(nn.Module):
    """Patches, learned positions and blocks with gated positional attention.

    Args:
        in_channels: Channels of the images.
        size: Height and width of the images, multiples of the patch.
        patch: Side of the square patches.
        width: Size D of tokens, a multiple of the heads.
        heads: Heads of each attention.
        blocks: Number of blocks.
        generator: Source of the weights; None draws from torch's default CPU generator.

    Raises:
        ValueError: If the patches do not fit the images, or the heads the width.
    """

    def __init__(
        self,
        in_channels: int,
        size: tuple[int, int],
        patch: int,
        width: int,
        heads: int,
        blocks: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if size[0] % patch or size[1] % patch:
            raise ValueError(f"images of {size[0]} x {size[1]} pixels cannot be cut into patches of {patch} x {patch}")
        if width % heads:
            raise ValueError(f"the width must be a multiple of the {heads} heads; got {width}")
        grid = (size[0] // patch, size[1] // patch)
        self.patches = _patches(in_channels, width, patch, generator)
        self.positions = drawn(grid[0] * grid[1], width, generator=generator)
        self.blocks = nn.ModuleList(ConvitBlock(width, heads, grid, generator) for _ in range(blocks))

    def forward(self, images: Tensor, kept: Sequence[Kept] | None = None) -> Tensor:
        """Map images [B, C, H, W] to tokens [B, N, D], row by row of the patches; `kept` is that of each block."""
        tokens: Tensor = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for block, part in zip(self.blocks, kept or [None] * len(self.blocks), strict=True):
            tokens = block(tokens, part)
        return tokens


def _patches(in_channels: int, width: int, patch: int, generator: torch.Generator | None) -> nn.Conv2d:
    """Return the convolution that turns each patch into a token, with torch's distribution of the weights."""
    layer = nn.Conv2d(in_channels, width, patch, patch, device="meta").to_empty(device="cpu")
    bound = 1 / math.sqrt(in_channels * patch * patch)
    with torch.no_grad():
        for parameter in (layer.weight, layer.bias):
            assert parameter is not None
            parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * bound)
    return layer


def _offsets(grid: tuple[int, int]) -> Tensor:
    """Return x, y and x² + y² of the way from each patch to each, [N, N, 3]."""
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    x, y = (part.flatten()[None] - part.flatten()[:, None] for part in (columns, rows))
    return torch.stack([x, y, x.square() + y.square()], dim=2).float()


def _centres(side: int) -> Tensor:
    """Return the centres of a square of side x side taps as x and y, [side², 2]."""
    taps = torch.arange(side) - (side - 1) / 2
    x, y = torch.meshgrid(taps, taps, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], dim=1)
