"""Gated mergeable branches for any network: plan, attach, train, merge, roll back."""

from inlay.branches.attach import attach
from inlay.branches.fold import fold, folded_layers, gammas
from inlay.branches.folded import Folded
from inlay.branches.gates import Gate, gate, register
from inlay.branches.history import History, Stage
from inlay.branches.hybrid import HybridUnit, branch_parameters, hybrid_units, is_hybrid
from inlay.branches.merge import MergeReport, merge
from inlay.branches.movement import Movement, compare
from inlay.branches.onnx import OnnxReport, export_onnx
from inlay.branches.parameters import count_parameters, folded_parameters
from inlay.branches.plan import Plan, PlanRow, plan
from inlay.branches.rollback import rollback
from inlay.branches.skeleton import describe, rebuild
from inlay.branches.stock import load_gammas, save_stock, stock_state_dict
from inlay.branches.targets import Targets

__all__ = [
    "Folded",
    "Gate",
    "History",
    "HybridUnit",
    "MergeReport",
    "Movement",
    "OnnxReport",
    "Plan",
    "PlanRow",
    "Stage",
    "Targets",
    "attach",
    "branch_parameters",
    "compare",
    "count_parameters",
    "describe",
    "export_onnx",
    "fold",
    "folded_layers",
    "folded_parameters",
    "gammas",
    "gate",
    "hybrid_units",
    "is_hybrid",
    "load_gammas",
    "merge",
    "plan",
    "rebuild",
    "register",
    "rollback",
    "save_stock",
    "stock_state_dict",
]
