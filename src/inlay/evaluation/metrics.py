"""Accuracy on old and new classes, with the definitions that the numbers stand for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from inlay.errors import InlayError
from inlay.evaluation.arrays import Ids, Values, to_ids, to_logits
from inlay.evaluation.matching import MatchedOn

__all__ = ["Scores", "score", "score_predictions"]

_FRACTION_KEYS = ("old", "new", "all", "new_head", "old_head", "nmi")
_COUNT_KEYS = {"old", "new", "all"}


@dataclass(frozen=True)
class Scores:
    """Scores of a model after a stage, as fractions, on test images of the classes seen so far.

    A class counts as right when the predicted output is the one matched to the image's true class; images of
    a class without an output always count as wrong. None marks a score that has no images or no outputs to be
    taken on. After the base stage every class is old: `old`, `all` and `old_head` are the accuracy over the
    base classes, and `new`, `new_head`, `nmi` and `ari` are None.

    Attributes:
        old: accuracy on classes learned before the current stage, argmax over all outputs.
        new: accuracy on classes of the current stage, argmax over all outputs.
        all: accuracy on all images, argmax over all outputs; the mean of `old` and `new` weighted by images.
        groups: accuracy on the classes of each stage apart ("base", "stage1", ...), argmax over all outputs.
        new_head: accuracy on classes of the current stage, argmax over the outputs of this stage only.
        old_head: accuracy on classes learned before, argmax over the outputs of earlier stages only.
        nmi: normalised mutual information (arithmetic mean) of the `new_head` clusters and the true classes.
        ari: adjusted Rand index of the `new_head` clusters and the true classes.
        matched_on: split on which clusters were matched to true classes, None where nothing was matched.
        counts: number of test images behind `old`, `new` and `all`.

    Raises:
        RuntimeError: if `all` is not the mean of `old` and `new` weighted by their images.
    """

    old: float | None
    new: float | None
    all: float
    groups: Mapping[str, float | None]
    new_head: float | None
    old_head: float | None
    nmi: float | None
    ari: float | None
    matched_on: MatchedOn | None
    counts: Mapping[str, int]

    def __post_init__(self) -> None:
        old, new, every = self.counts["old"], self.counts["new"], self.counts["all"]
        right = (self.old or 0.0) * old + (self.new or 0.0) * new
        if old + new != every or not math.isclose(right, self.all * every, rel_tol=1e-9, abs_tol=1e-9):
            raise RuntimeError("the accuracy on all images is not the weighted mean of old and new")

    def to_json(self) -> dict[str, object]:
        """The scores as a plain JSON object under the names of the attributes."""
        return {**vars(self), "groups": dict(self.groups), "counts": dict(self.counts)}

    @classmethod
    def from_json(cls, data: object) -> Scores:
        """Rebuild scores from what `to_json` gave.

        Raises:
            InlayError: if the data is not what `to_json` writes.
        """
        keys = {*_FRACTION_KEYS, "ari", "groups", "matched_on", "counts"}
        if not isinstance(data, dict) or data.keys() != keys:
            raise _damaged(f"they do not have exactly the keys {', '.join(sorted(keys))}")
        groups, counts = data["groups"], data["counts"]
        if not isinstance(groups, dict) or not isinstance(counts, dict) or counts.keys() != _COUNT_KEYS:
            raise _damaged("groups or counts are not what they should be")
        if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in counts.values()):
            raise _damaged("a count is not a number of images")
        fractions = [*(data[key] for key in _FRACTION_KEYS), *groups.values()]
        if data["all"] is None or not all(_is_score(value, lowest=0.0) for value in fractions):
            raise _damaged("a score is not a fraction")
        if not _is_score(data["ari"], lowest=-1.0):
            raise _damaged("ari is not a number from -1 to 1")
        if data["matched_on"] not in (None, *get_args(MatchedOn)):
            raise _damaged(f"matched_on is {data['matched_on']!r}")
        try:
            return cls(**data)
        except RuntimeError as error:
            raise _damaged(str(error)) from error


def score(
    logits: Values,
    truth_ids: Values,
    class_stages: Values,
    truth_stages: Values | None = None,
    *,
    matched_on: MatchedOn | None = None,
) -> Scores:
    """Score the outputs of the joint head after the latest stage; see `Scores` for the definitions.

    Args:
        logits: outputs of the joint head, [N, C]; of equal outputs the first wins.
        truth_ids: output that is right for each image, [N]; negative for a class without an output. Classes
            with different negative numbers are kept apart in NMI and ARI.
        class_stages: stage that brought each output, [C]; the largest is the current stage.
        truth_stages: stage of each image's true class, [N]; needed where `truth_ids` has negative numbers.
        matched_on: split on which the clusters were matched.

    Raises:
        ValueError: if shapes or ids do not fit, or there is no image.
    """
    values, stages = to_logits(logits), to_ids(class_stages, "class_stages")
    if values.shape[1] != len(stages):
        raise ValueError(f"{values.shape[1]} outputs but {len(stages)} class stages were given")
    if not values.size:
        raise ValueError("scores need at least one test image and one output")
    is_new = stages == _current_stage(stages)
    return score_predictions(
        values.argmax(axis=1),
        truth_ids,
        stages,
        truth_stages,
        new_head=_argmax_among(values, is_new),
        old_head=_argmax_among(values, ~is_new),
        matched_on=matched_on,
    )


def score_predictions(
    predictions: Values,
    truth_ids: Values,
    class_stages: Values,
    truth_stages: Values | None = None,
    *,
    new_head: Values | None = None,
    old_head: Values | None = None,
    matched_on: MatchedOn | None = None,
) -> Scores:
    """Score predicted outputs where logits are not at hand; see `Scores` for the definitions.

    Args:
        predictions: output predicted for each image among all outputs, [N].
        truth_ids: output that is right for each image, [N], as in `score`.
        class_stages: stage that brought each output, [C], as in `score`.
        truth_stages: stage of each image's true class, [N], as in `score`.
        new_head: output predicted among those of the current stage, [N], read on its images only;
            `new_head`, `nmi` and `ari` are None when left out.
        old_head: output predicted among those of earlier stages, [N], read on their images only; `old_head`
            is None when left out. After the base stage it is `predictions` whatever is given.
        matched_on: split on which the clusters were matched.

    Raises:
        ValueError: if shapes or ids do not fit, or there is no image.
    """
    stages = to_ids(class_stages, "class_stages")
    truth = to_ids(truth_ids, "truth_ids")
    if not len(truth) or not len(stages):
        raise ValueError("scores need at least one test image and one output")
    current = _current_stage(stages)
    every = np.ones(len(truth), dtype=bool)
    chosen = _head_ids(predictions, truth, np.arange(len(stages)), every, "predictions")
    of_image = _stages_of_images(truth, stages, truth_stages)
    is_new = (of_image == current) & (current > 0)
    is_old = ~is_new

    if current == 0:
        old_head = chosen
    new_accuracy = old_accuracy = nmi = ari = None
    if old_head is not None:
        earlier = np.flatnonzero((stages < current) | (current == 0))
        old_accuracy = _accuracy(_head_ids(old_head, truth, earlier, is_old, "old_head"), truth, is_old)
    if new_head is not None:
        ids = _head_ids(new_head, truth, np.flatnonzero(stages == current), is_new, "new_head")
        new_accuracy = _accuracy(ids, truth, is_new)
        nmi, ari = _agreement(ids[is_new], truth[is_new])
    return Scores(
        old=_accuracy(chosen, truth, is_old),
        new=_accuracy(chosen, truth, is_new),
        all=float((chosen == truth).mean()),
        groups={_group_name(s): _accuracy(chosen, truth, of_image == s) for s in np.unique(stages).tolist()},
        new_head=new_accuracy,
        old_head=old_accuracy,
        nmi=nmi,
        ari=ari,
        matched_on=matched_on,
        counts={"old": int(is_old.sum()), "new": int(is_new.sum()), "all": len(truth)},
    )


def _current_stage(stages: Ids) -> int:
    return int(stages.max())


def _group_name(stage: int) -> str:
    return "base" if stage == 0 else f"stage{stage}"


def _argmax_among(logits: NDArray[np.float64], allowed: NDArray[np.bool_]) -> Ids | None:
    if not allowed.any():
        return None
    outputs: Ids = np.flatnonzero(allowed)
    winners: Ids = outputs[logits[:, outputs].argmax(axis=1)]
    return winners


def _accuracy(ids: Ids, truth: Ids, images: NDArray[np.bool_]) -> float | None:
    return float((ids[images] == truth[images]).mean()) if images.any() else None


def _agreement(clusters: Ids, truth: Ids) -> tuple[float | None, float | None]:
    if not len(truth):
        return None, None
    # Takes seconds to import, so only when it is needed.
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    # Rounding can carry a perfect NMI just above 1.
    nmi = min(1.0, float(normalized_mutual_info_score(truth, clusters)))
    return nmi, float(adjusted_rand_score(truth, clusters))


def _head_ids(values: Values, truth: Ids, outputs: Ids, images: NDArray[np.bool_], name: str) -> Ids:
    ids = to_ids(values, name)
    if ids.shape != truth.shape:
        raise ValueError(f"{name} has {len(ids)} ids for {len(truth)} images")
    if not np.isin(ids[images], outputs).all():
        raise ValueError(f"{name} holds an id that is not among its outputs")
    return ids


def _stages_of_images(truth: Ids, stages: Ids, truth_stages: Values | None) -> Ids:
    if truth.max() >= len(stages):
        raise ValueError(f"truth_ids must be smaller than the number of outputs, {len(stages)}")
    has_output = truth >= 0
    if truth_stages is None:
        if not has_output.all():
            raise ValueError("truth_stages is needed where truth_ids has negative numbers")
        return stages[truth]
    given = to_ids(truth_stages, "truth_stages")
    if given.shape != truth.shape:
        raise ValueError(f"truth_stages has {len(given)} stages for {len(truth)} images")
    if not np.isin(given, stages).all():
        raise ValueError("truth_stages holds a stage that brought no output")
    if (given[has_output] != stages[truth[has_output]]).any():
        raise ValueError("truth_stages and class_stages disagree on the stage of a class")
    return given


def _is_score(value: object, lowest: float) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and lowest <= value <= 1


def _damaged(reason: str) -> InlayError:
    return InlayError(f"The scores were damaged or edited by hand ({reason}); put back the file that inlay wrote.")
