"""Scoring what a learner knows on labelled test images."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from inlay.data.images import Images
from inlay.engine.progress import Progress
from inlay.errors import InlayError
from inlay.evaluation import Scores
from inlay.evaluation.benchmark import StageTruth, match_on_test, score_learner
from inlay.evaluation.truths import given_truths
from inlay.history import History
from inlay.knowledge import Knowledge

__all__ = ["score_knowledge"]


def score_knowledge(
    knowledge: Knowledge, history: History, test: Images, match: Images | None, progress: Progress
) -> Scores:
    """Match the discovered classes that were not matched yet, and score the joint head.

    Args:
        knowledge: What is known after the latest stage.
        history: All stages; matchings on images of the stages are kept with it.
        test: Labelled test images.
        match: Labelled images of the discovery stages; None matches what is left on the test images.
        progress: Receiver of news.

    Raises:
        InlayError: If the images have no labels or are not those of the stages, or two classes stand for the same.
    """
    records, kept = history.records, history.truths
    logits = knowledge.logits(test)
    if match is not None and not kept.match(records, match):
        progress.note("The discovered classes were matched before, and that matching stands.")
    given = given_truths(records)
    truths = kept.upto(records[-1].index) | given
    base = records[0].class_names
    _refuse_doubles(base, truths)
    stages = {r.index: [e.id for e in knowledge.registry.of_stage(r.index)] for r in records[1:]}
    missing = {index: ids for index, ids in stages.items() if index not in truths}
    if missing:
        known = [*base, *(name for truth in truths.values() for name in truth.names)]
        truths |= match_on_test(logits, test, known, missing)
    class_stages = [entry.stage for entry in knowledge.registry]
    ordered = [_for_outputs(truths[index], class_stages.count(index)) for index in sorted(truths)]
    scores, left_out = score_learner(logits, test, base, class_stages, ordered)
    if left_out:
        progress.note(f"{left_out} test images of classes that were not seen yet are left out.")
    # Names that were given are no matching.
    return scores if truths.keys() - given.keys() else replace(scores, matched_on=None)


def _refuse_doubles(base: Sequence[str], truths: Mapping[int, StageTruth]) -> None:
    """Refuse to score classes of which two stand for the same images."""
    stage_of = dict.fromkeys(base, 0)
    for index in sorted(truths):
        for name in truths[index].names:
            if name in stage_of:
                raise InlayError(
                    f"A class of stage {stage_of[name]} and one of stage {index} both stand for {name!r}, so images of "
                    f"it cannot be scored; roll the run back to stage {index - 1} and leave it out."
                )
            stage_of[name] = index


def _for_outputs(truth: StageTruth, outputs: int) -> StageTruth:
    """Return the matching of a stage for all its outputs, those that a split has brought since among them."""
    names = truth.matching.truth_of
    padding = (None,) * (outputs - len(names))
    return replace(truth, matching=replace(truth.matching, truth_of=(*names, *padding)))
