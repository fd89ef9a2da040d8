"""Gates: how much of a novel branch is let through beside the frozen base. One file each."""

from inlay.branches.gates.aff import AFF
from inlay.branches.gates.amm import AMM
from inlay.branches.gates.constant import Constant
from inlay.branches.gates.controls import MeanAMM, ShuffledAMM
from inlay.branches.gates.gate import Gate, gate, gate_names, register
from inlay.branches.gates.imm import IMM

__all__ = ["AFF", "AMM", "IMM", "Constant", "Gate", "MeanAMM", "ShuffledAMM", "gate", "gate_names", "register"]
