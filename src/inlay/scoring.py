"""Scoring what a learner knows on labelled test images."""

from inlay.data.images import Images
from inlay.engine.progress import Progress
from inlay.evaluation import Scores
from inlay.evaluation.benchmark import match_on_test, score_learner
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
        InlayError: If the images have no labels or are not those of the stages.
    """
    records, kept = history.records, history.truths
    logits = knowledge.logits(test)
    if match is not None and not kept.match(records, match):
        progress.note("The discovered classes were matched before, and that matching stands.")
    truths = kept.upto(records[-1].index)
    base = records[0].class_names
    stages = {r.index: [e.id for e in knowledge.registry.of_stage(r.index)] for r in records[1:]}
    missing = {index: ids for index, ids in stages.items() if index not in truths}
    if missing:
        known = [*base, *(name for truth in truths.values() for name in truth.names)]
        truths |= match_on_test(logits, test, known, missing)
    class_stages = [entry.stage for entry in knowledge.registry]
    scores, left_out = score_learner(logits, test, base, class_stages, [truths[index] for index in sorted(truths)])
    if left_out:
        progress.note(f"{left_out} test images of classes that were not seen yet are left out.")
    return scores
