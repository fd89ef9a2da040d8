"""Our method: prototypes that start from k-means, balanced assignments swapped between views."""

from inlay.methods import terms
from inlay.methods.method import Method, prototypes_from_kmeans

__all__ = ["METHOD"]

METHOD = Method(
    name="inlay",
    summary="prototypes in the metric of known classes, swapped balanced assignments, drift-corrected densities",
    terms=(
        terms.ASSIGNMENT,
        terms.INFORMATION,
        terms.DISTILLATION,
        terms.CONTRASTIVE,
        terms.SELF_TRAINING,
        terms.REPLAY,
    ),
    novel_head=prototypes_from_kmeans,
)
