"""Adaptive Discovering and Merging (Chen et al., AAAI 2024), the losses of the paper."""

from inlay.methods import terms
from inlay.methods.method import Method, linear_novel_head

__all__ = ["METHOD"]

METHOD = Method(
    name="adm",
    summary="ADM as printed: contrastive, distillation, self-training, triplet, regularization, replay",
    terms=(
        terms.CONTRASTIVE,
        terms.DISTILLATION,
        terms.SELF_TRAINING,
        terms.TRIPLET,
        terms.REGULARIZATION,
        terms.REPLAY,
    ),
    novel_head=linear_novel_head,
)
