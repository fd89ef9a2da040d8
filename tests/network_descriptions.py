"""Descriptions of small networks, to be drawn at random; `random_networks` builds what they describe."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from hypothesis import strategies as st

Padding = int | Literal["same", "valid"]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
Activation = Literal["none", "relu", "relu in place", "gelu"]
Norm = Literal["affine", "none", "plain", "batch", "previous"]
Use = Literal[
    "once", "chained", "twice", "two norms", "one bare", "raw", "returned", "two layers", "norm twice", "view"
]
Obstacle = Literal["none", "transposed", "tied", "parametrized", "hooked"]
Mlp = Literal["pre-norm", "gated", "post-norm", "norm used twice", "no norm"]
TokenNorm = Literal["affine", "plain", "no bias", "rms", "previous"]


@dataclass(frozen=True)
class LayerBlock:
    """A convolution or linear layer and what follows it; what does not fit the input is mended when it is built.

    Attributes:
        norm: Batch norm behind the layer: "plain" has no scale and shift, "batch" no running statistics, "previous"
            is that of the block before.
        use: "once": by the norm alone; "chained": layer and norm run again on the result; "twice": on two inputs;
            "two norms": the second time in front of another norm; "one bare": in front of none; "raw": the output
            beside what the norm makes of it; "returned": the output is returned too; "two layers": they share the
            norm; "norm twice": the norm is also given the input; "view": the norm sees a view of the output.
        obstacle: What keeps the layer from having a branch.
        activation_first: Whether the activation comes before the norm.
    """

    channels: int
    groups: int
    kernel: tuple[int, int, int]
    stride: int
    dilation: int
    padding: Padding
    padding_mode: PaddingMode
    bias: bool
    norm: Norm
    use: Use
    obstacle: Obstacle
    activation: Activation
    activation_first: bool
    residual: bool


@dataclass(frozen=True)
class TokenBlock:
    """The MLP of a transformer."""

    hidden: int
    mlp: Mlp
    norm: TokenNorm
    bias: bool
    activation: Activation
    residual: bool


@dataclass(frozen=True)
class Description:
    """A network.

    Attributes:
        dimensions: Of the images: 0 for vectors, 1 to 3 for images; None for tokens.
        channels: Of what it is given.
        blocks: What it runs, in order.
        head: Whether a linear layer comes last.
        backwards: Whether modules are registered in the opposite order.
        dtype: Type of its weights.
    """

    dimensions: int | None
    channels: int
    blocks: tuple[LayerBlock | TokenBlock, ...]
    head: bool
    backwards: bool
    dtype: torch.dtype

    @property
    def shares_norms(self) -> bool:
        """Whether several layers may stand in front of one norm."""
        return any(block.norm == "previous" for block in self.blocks) or any(
            isinstance(block, LayerBlock) and block.use == "two layers" for block in self.blocks
        )


def _any_of(literal: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(get_args(literal))


def _descriptions(
    dimensions: st.SearchStrategy[int | None], blocks: st.SearchStrategy[LayerBlock | TokenBlock]
) -> st.SearchStrategy[Description]:
    return st.builds(
        Description,
        dimensions=dimensions,
        channels=st.sampled_from([4, 2]),
        blocks=st.lists(blocks, min_size=1, max_size=3).map(tuple),
        head=st.booleans(),
        backwards=st.booleans(),
        dtype=st.sampled_from([torch.float32, torch.float64]),
    )


_LAYER_BLOCKS: st.SearchStrategy[LayerBlock] = st.builds(
    LayerBlock,
    channels=st.sampled_from([4, 2, 6]),
    groups=st.sampled_from([1, 2, 4]),
    kernel=st.just((3, 3, 3)) | st.tuples(*[st.integers(1, 4)] * 3),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    padding=st.one_of(st.integers(0, 2), st.sampled_from(["same", "valid"])),
    padding_mode=_any_of(PaddingMode),
    bias=st.booleans(),
    norm=st.just("affine") | _any_of(Norm),
    use=st.just("once") | _any_of(Use),
    # Few obstacles: a network of which every layer is refused shows little.
    obstacle=st.sampled_from(["none"] * 16 + ["transposed", "tied", "parametrized", "hooked"]),
    activation=_any_of(Activation),
    activation_first=st.sampled_from([False] * 7 + [True]),
    residual=st.booleans(),
)
_TOKEN_BLOCKS: st.SearchStrategy[TokenBlock] = st.builds(
    TokenBlock,
    hidden=st.sampled_from([4, 6]),
    mlp=_any_of(Mlp),
    norm=_any_of(TokenNorm),
    bias=st.booleans(),
    activation=_any_of(Activation),
    residual=st.booleans(),
)
LAYERED = _descriptions(st.sampled_from([2, 0, 1, 3]), _LAYER_BLOCKS)
TOKENWISE = _descriptions(st.none(), _TOKEN_BLOCKS)
