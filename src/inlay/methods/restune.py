"""ResTune (Liu and Tuytelaars, TNNLS 2022): a second last group for the new classes, the first held by distillation."""

from torch import nn

from inlay.engine.randomness import generator
from inlay.heads import linear
from inlay.methods import baseline_terms
from inlay.methods.method import Method
from inlay.methods.targets import ClusterTargets, refresh_targets, residual_student_head
from inlay.methods.task import StageTask

__all__ = ["METHOD"]


def _parts(task: StageTask) -> dict[str, nn.Module]:
    ranking = linear(task.head.in_features, task.classes, generator(task.seed, "ranking head"))
    return {"targets": ClusterTargets(len(task.feed), task.classes), "ranking": ranking}


METHOD = Method(
    name="restune",
    summary="ResTune: DTC on a twin last group, ranked pairs, softened distillation; no joint head",
    terms=(
        baseline_terms.CLUSTERING,
        baseline_terms.CONSISTENCY,
        baseline_terms.RANKING,
        baseline_terms.SOFTENED,
    ),
    novel_head=residual_student_head,
    joint=False,
    parts=_parts,
    begin_epoch=refresh_targets,
)
