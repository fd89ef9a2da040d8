"""FRoST (Roy et al., ECCV 2022): AutoNovel's losses, feature distillation, feature replay and self-training."""

from inlay.methods import baseline_terms, terms
from inlay.methods.method import Method, linear_novel_head

__all__ = ["METHOD"]

METHOD = Method(
    name="frost",
    summary="FRoST: rank pairs, consistency, self-training, feature distillation, feature replay",
    terms=(
        baseline_terms.PAIRS,
        baseline_terms.CONSISTENCY,
        terms.SELF_TRAINING,
        terms.REPLAY,
        terms.DISTILLATION,
    ),
    novel_head=linear_novel_head,
)
