"""Networks with one embedding for each task: DyTox (Douillard et al., CVPR 2022)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from inlay.backbones.convit import Convit, Mlp, drawn, merged_heads, split_heads, transformer_linear
from inlay.backbones.stochastic_depth import Kept, added, kept_paths
from inlay.data.draws import Draws
from inlay.errors import InlayError

__all__ = ["SHAPES", "Shape", "TaskAttention", "TaskAttentionBlock", "TaskTokenNetwork", "shape_named"]


@dataclass(frozen=True)
class Shape:
    """The sizes of a network with task tokens.

    Attributes:
        patch: Side of the square patches.
        width: Size D of tokens and embeddings, a multiple of the heads.
        heads: Heads of each attention.
        blocks: Blocks with self-attention in front of the one with task attention.
        drop: Probability with which attention or MLP of the last block are left out in training; it rises evenly from
            0 in the first block.
    """

    patch: int = 4
    width: int = 384
    heads: int = 12
    blocks: int = 5
    drop: float = 0.1


SHAPES: Mapping[str, Shape] = {"dytox": Shape(), "dytox-tiny": Shape(patch=2, width=32, heads=4, blocks=2)}
"""Shapes by name: that of the paper, for images of 32 pixels, and one for images of about 14."""


def shape_named(name: str) -> Shape:
    """Look up a shape.

    Raises:
        InlayError: If there is none of that name.
    """
    if name not in SHAPES:
        raise InlayError(f"A network with task tokens cannot be a {name!r}: write backbone={' or '.join(SHAPES)}.")
    return SHAPES[name]


class TaskAttention(nn.Module):
    """Attention of each task token to itself and all patches, but not to other tasks (after CaiT).

    Args:
        width: Size D of tokens.
        heads: Number of heads.
        generator: Source of the weights.
    """

    def __init__(self, width: int, heads: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.heads = heads
        self.query = transformer_linear(width, width, False, generator)
        self.key = transformer_linear(width, width, False, generator)
        self.value = transformer_linear(width, width, False, generator)
        self.projection = transformer_linear(width, width, True, generator)

    def forward(self, tokens: Tensor, tasks: int) -> Tensor:
        """Map T task tokens and N patches behind them, [B, T + N, D], to [B, T, D]."""
        others = ~torch.eye(tasks, dtype=torch.bool, device=tokens.device)
        hidden = torch.cat([others, others.new_zeros(tasks, tokens.shape[1] - tasks)], dim=1)
        layers = ((self.query, tokens[:, :tasks]), (self.key, tokens), (self.value, tokens))
        query, key, value = (split_heads(layer(part), self.heads) for layer, part in layers)
        # Written out, as torch's own may take that of cuDNN on Hopper GPUs, which is known to fail for one query and to
        # give NaN with masks (PyTorch issues 138529 and 196678).
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3])
        attended = scores.masked_fill(hidden, -torch.inf).softmax(dim=3).to(value.dtype) @ value
        projected: Tensor = self.projection(merged_heads(attended))
        return projected


class TaskAttentionBlock(nn.Module):
    """Task attention and an MLP, each behind a layer norm and added to the task tokens.

    All tokens pass in one call; as they do not see each other, each has the embedding that it would have alone.

    Args:
        width: Size D of tokens.
        heads: Number of heads.
        generator: Source of the weights.
    """

    def __init__(self, width: int, heads: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = TaskAttention(width, heads, generator)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, generator)

    def forward(self, tokens: Tensor, patches: Tensor, kept: Kept = None) -> Tensor:
        """Map task tokens [B, T, D] and patches [B, N, D] to embeddings [B, T, D]; `kept` has factors [B, T, 1]."""
        of_attention, of_mlp = kept or (None, None)
        everything = self.norm1(torch.cat([tokens, patches], dim=1))
        tokens = added(tokens, self.attention(everything, tokens.shape[1]), of_attention)
        return added(tokens, self.mlp(self.norm2(tokens)), of_mlp)


class TaskTokenNetwork(nn.Module):
    """From images to the embeddings of all tasks side by side.

    It begins with the token of one task.

    Args:
        shape: Its sizes.
        in_channels: Channels of the images.
        size: Height and width of the images, multiples of the patch.
        generator: Source of the weights; None draws from torch's default CPU generator.

    Raises:
        InlayError: If the patches do not fit the images.
    """

    def __init__(
        self, shape: Shape, in_channels: int, size: tuple[int, int], generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        if size[0] % shape.patch or size[1] % shape.patch:
            raise InlayError(
                f"Images of {size[0]} x {size[1]} pixels cannot be cut into patches of {shape.patch} x {shape.patch}; "
                f"take images of another size, or another backbone among {', '.join(SHAPES)}."
            )
        self.encoder = Convit(in_channels, size, shape.patch, shape.width, shape.heads, shape.blocks, generator)
        self.decoder = TaskAttentionBlock(shape.width, shape.heads, generator)
        self.tokens = nn.ParameterList([drawn(shape.width, generator=generator)])
        self._drop = shape.drop

    def add_token(self, generator: torch.Generator | None) -> None:
        """Add a trainable token for a further task; the embeddings of the others stay what they are."""
        like = self.tokens[0]
        self.tokens.append(nn.Parameter(drawn(len(like), generator=generator).detach().to(like)))

    def drawn_paths(self, draws: Draws) -> list[Kept]:
        """Draw what is kept of each block in a step; for the last one independently for each task."""
        blocks = len(self.encoder.blocks)
        kept = [kept_paths(draws, self._drop * block / blocks) for block in range(blocks)]
        return [*kept, kept_paths(draws, self._drop, len(self.tokens))]

    def forward(self, images: Tensor, kept: list[Kept] | None = None) -> Tensor:
        """Map images [B, C, H, W] to the embeddings of T tasks, the first task first, [B, T·D].

        Args:
            images: The images.
            kept: What `drawn_paths` returned, for a step of training; None keeps everything.
        """
        patches = self.encoder(images, kept[:-1] if kept else None)
        tokens = torch.stack(list(self.tokens)).expand(len(images), -1, -1)
        embeddings: Tensor = self.decoder(tokens, patches, kept[-1] if kept else None)
        return embeddings.flatten(1)
