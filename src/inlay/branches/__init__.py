"""Novel branches beside a frozen network: fold, attach, train, merge."""

from inlay.branches.attach import attach, branch_parameters, hybrid_units, is_hybrid
from inlay.branches.fold import fold
from inlay.branches.folded import FoldedConv
from inlay.branches.gates import Gate, gate
from inlay.branches.merge import MergeReport, count_parameters, merge
from inlay.branches.skeleton import describe, rebuild
from inlay.branches.unit import HybridConv

__all__ = [
    "FoldedConv",
    "Gate",
    "HybridConv",
    "MergeReport",
    "attach",
    "branch_parameters",
    "count_parameters",
    "describe",
    "fold",
    "gate",
    "hybrid_units",
    "is_hybrid",
    "merge",
    "rebuild",
]
