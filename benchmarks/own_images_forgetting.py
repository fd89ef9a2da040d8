"""The estimated drop in accuracy on old classes, against the drop on images that nothing has seen."""

from typing import Any

from benchmarks.own_images_cases import Case

from inlay.data import ImageSet
from inlay.discovering import forgetting_of
from inlay.knowledge import Knowledge
from inlay.pipeline import learn_stage

__all__ = ["forgetting_row"]


def forgetting_row(case: Case) -> dict[str, Any]:
    """Learn all new classes in one stage, and compare estimate and truth."""
    new, test = case.new, case.old_test
    after = learn_stage(case.knowledge, new.without_labels(), len(new.class_names), case.settings, case.workshop)
    estimate = forgetting_of(case.knowledge, after, case.calibration.correction)
    before, now = _accuracy(case.knowledge, test), _accuracy(after, test)
    return {
        "estimate": estimate.drop,
        "uncorrected": estimate.uncorrected,
        "standard_error": estimate.standard_error,
        "truth": before - now,
        "accuracy_before": before,
        "accuracy_after": now,
        "test_images": len(test),
    }


def _accuracy(knowledge: Knowledge, images: ImageSet) -> float:
    assert images.labels is not None
    return float((knowledge.logits(images).argmax(dim=1) == images.labels.cpu()).double().mean())
