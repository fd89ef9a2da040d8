"""AutoNovel (Han et al., ICLR 2020) without old images: pairs by ranking statistics, and consistency of views."""

from inlay.methods import baseline_terms
from inlay.methods.method import Method, linear_novel_head

__all__ = ["METHOD"]

METHOD = Method(
    name="autonovel",
    summary="AutoNovel without old images: rank pairs, consistency; no joint head",
    terms=(baseline_terms.PAIRS, baseline_terms.CONSISTENCY),
    novel_head=linear_novel_head,
    joint=False,
)
