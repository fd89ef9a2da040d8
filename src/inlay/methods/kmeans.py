"""K-means on the frozen features: a reference that trains nothing but the refitted head."""

from inlay.methods.method import Method, prototypes_from_kmeans

__all__ = ["METHOD"]

METHOD = Method(
    name="kmeans",
    summary="k-means on the frozen features, refitted head: a reference without training",
    terms=(),
    novel_head=prototypes_from_kmeans,
)
