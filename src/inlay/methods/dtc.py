"""DTC (Han et al., ICCV 2019), variant PI: assignments to learnable centres, taught by their sharpened form.

The bottleneck starts as the principal projection, so that no warm-up has to align it with the centres.
"""

from torch import nn

from inlay.methods import baseline_terms
from inlay.methods.method import Method
from inlay.methods.targets import ClusterTargets, refresh_targets, student_head
from inlay.methods.task import StageTask

__all__ = ["METHOD"]


def _targets(task: StageTask) -> dict[str, nn.Module]:
    return {"targets": ClusterTargets(len(task.feed), task.classes)}


METHOD = Method(
    name="dtc",
    summary="DTC: Student-t assignments taught by their sharpened form, consistency; no joint head",
    terms=(baseline_terms.CLUSTERING, baseline_terms.CONSISTENCY),
    novel_head=student_head,
    joint=False,
    parts=_targets,
    begin_epoch=refresh_targets,
)
