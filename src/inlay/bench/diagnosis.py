"""What else is said of a trained system, besides the scores of the protocol."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inlay.data import ImageSet, Stages
from inlay.engine.checkpoint import read_tensors, write_tensors
from inlay.evaluation.confusion import old_new_confusion
from inlay.evaluation.released import released_accuracies
from inlay.evaluation.tradeoff import tradeoff
from inlay.heads import ConcatenatedHead, describe_head, rebuild_head
from inlay.learner import Learner
from inlay.methods import StageOutcome
from inlay.pipeline import Workshop

__all__ = ["HeadKeepingLearner", "diagnose"]

_POINTS = 60


@dataclass(frozen=True)
class _HeadKeepingWorkshop(Workshop):
    """Writes the novel head of each stage to a file, as a run does not keep it."""

    file: Path = field(kw_only=True)

    def settled(self, outcome: StageOutcome) -> None:
        """Keep the novel head."""
        if outcome.novel_head is not None:
            write_tensors(self.file, outcome.novel_head.state_dict(), describe_head(outcome.novel_head))


class HeadKeepingLearner(Learner):
    """A learner that keeps the novel head of its latest stage in a file.

    Attributes:
        head_file: The file.
    """

    head_file: Path

    def novel_head(self) -> nn.Module | None:
        """Return the novel head of the latest stage; None if the joint head played its part."""
        if not self.head_file.exists():
            return None
        tensors, description = read_tensors(self.head_file)
        return rebuild_head(description, tensors).to(self.device).requires_grad_(False)

    def _workshop(self) -> Workshop:
        return _HeadKeepingWorkshop(**vars(super()._workshop()), file=self.head_file)


@torch.no_grad()
def diagnose(learner: HeadKeepingLearner, stages: Stages) -> dict[str, Any]:
    """Say more of a learner whose latest stage was scored.

    Args:
        learner: The learner, with all its stages matched.
        stages: The stages of the data.

    Returns:
        `novel_head`: accuracy of the novel head on the test images of the latest stage; None if there is none.
        `calibrated`: scores of heads side by side once they are on one scale; None for a joint head.
        `released`: accuracies as the released code computes them, in the first stage; None later.
        `tradeoff`: accuracy on old against that on new images; `old_new`: confusion of old with new.
    """
    test, old = stages.test(stages.count), len(learner.classes) - len(learner.classes.of_stage(stages.count))
    known, truth = learner.knowledge, _right_outputs(learner, test)
    features = known.features(test)
    logits = known.scores(features)
    head = learner.novel_head()
    novel = None if head is None else head(features)
    found: dict[str, Any] = dict.fromkeys(("novel_head", "calibrated", "released"))
    is_new = truth >= old
    if novel is not None:
        found["novel_head"] = float((novel.argmax(dim=1).cpu() + old == truth)[is_new].float().mean())
    if isinstance(known.head, ConcatenatedHead):
        found["calibrated"] = _accuracies(known.head.calibrated(features).argmax(dim=1).cpu(), truth, is_new)
        novel = None
    if stages.count == 1:
        found["released"] = _released(learner, stages, logits, novel)
    found["tradeoff"] = tradeoff(logits, truth, old, _POINTS).to_json()
    found["old_new"] = old_new_confusion(logits.argmax(dim=1).cpu(), truth, old).tolist()
    return found


def _right_outputs(learner: Learner, test: ImageSet) -> Tensor:
    """Return the output that is right for each test image, [N]."""
    matched = (learner.matched_names(record.index) for record in learner.stages[1:])
    outputs = [*learner.stages[0].class_names, *(name for names in matched for name in names)]
    assert test.labels is not None
    return torch.tensor([outputs.index(name) for name in test.class_names])[test.labels]


def _accuracies(predicted: Tensor, truth: Tensor, is_new: Tensor) -> dict[str, float]:
    right = (predicted == truth).float()
    return {"old": float(right[~is_new].mean()), "new": float(right[is_new].mean()), "all": float(right.mean())}


def _released(learner: Learner, stages: Stages, logits: Tensor, novel: Tensor | None) -> dict[str, float]:
    """Score with truth numbered by the data set, as the released code has it."""
    names = [*learner.stages[0].class_names, *stages.class_names(1)]
    test, matched = stages.test(1), learner.matched_names(1)
    assert test.labels is not None
    truth = torch.tensor([names.index(name) for name in test.class_names])[test.labels]
    old = len(learner.stages[0].class_names)
    return released_accuracies(logits, novel, truth, [matched.index(name) for name in stages.class_names(1)], old)
