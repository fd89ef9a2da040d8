"""Benchmark scoring of a learner whose discovered classes have no names yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from inlay.data.images import Images
from inlay.errors import InlayError
from inlay.evaluation.matching import MatchedOn, Matching, map_truth
from inlay.evaluation.metrics import Scores, score

__all__ = ["StageTruth", "match_on_test", "match_stage", "score_learner"]


@dataclass(frozen=True)
class StageTruth:
    """What the clusters of one discovery stage stand for; found once, then fixed.

    Attributes:
        matching: True class of each cluster.
        names: All true classes among the images of the stage.
    """

    matching: Matching
    names: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return plain objects."""
        return {"matching": self.matching.to_json(), "names": list(self.names)}

    @classmethod
    def from_json(cls, data: object) -> "StageTruth":
        """Rebuild from what `to_json` returned.

        Raises:
            InlayError: If the data is not what `to_json` writes.
        """
        if not isinstance(data, dict) or data.keys() != {"matching", "names"}:
            raise _damaged("a stage does not have exactly the keys matching, names")
        matching, names = Matching.from_json(data["matching"]), data["names"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _damaged("names is not a list of names")
        if not {name for name in matching.truth_of if name is not None} <= set(names):
            raise _damaged("a cluster stands for a class that is not among the names")
        return cls(matching, tuple(names))


def match_stage(
    stage: int,
    cluster_of: Mapping[str, int],
    cluster_count: int,
    labelled: Images,
    known: Sequence[str] = (),
    mixed: bool = False,
) -> StageTruth:
    """Match the clusters of a stage on its own images, given once more with labels.

    Args:
        stage: Number of the stage.
        cluster_of: Cluster of each of its images, by fingerprint.
        cluster_count: Number of clusters.
        labelled: Labelled images; those that the stage did not see are left out.
        known: Names of the classes of other stages.
        mixed: Whether images of known classes were sorted out before the stage; those that slipped through are left
            out of the matching.

    Raises:
        InlayError: If images of the stage are missing, or some of them are of a class of another stage.
    """
    names, fingerprints = _names(labelled), labelled.fingerprints()
    seen = [index for index, fingerprint in enumerate(fingerprints) if fingerprint in cluster_of]
    if not seen:
        raise InlayError(
            f"None of the images given for matching was among the unlabelled images of stage {stage}; give the same "
            f"images with their labels."
        )
    missing = len(cluster_of.keys() - set(fingerprints))
    if missing:
        raise InlayError(
            f"{missing} of the {len(cluster_of)} unlabelled images of stage {stage} are not among the images given for "
            f"matching; give all of them with their labels."
        )
    if mixed:
        seen = [index for index in seen if names[index] not in set(known)]
    truth = [names[index] for index in seen]
    clusters = [cluster_of[fingerprints[index]] for index in seen]
    classes = tuple(sorted(set(truth)))
    shared = next((name for name in classes if name in set(known)), None)
    if shared is not None:
        raise InlayError(
            f"Some images of stage {stage} are labelled {shared!r}, a class of another stage, so its clusters cannot "
            f"be matched; give the stage images of new classes alone."
        )
    return StageTruth(Matching.solve(stage, clusters, truth, cluster_count, classes, "train"), classes)


def match_on_test(
    logits: Tensor, test: Images, known: Sequence[str], stages: Mapping[int, Sequence[int]]
) -> dict[int, StageTruth]:
    """Match the clusters of several stages together on the test images themselves.

    This flatters the result, so it is marked `matched_on: test`. Any class outside `known` is taken for one of these
    stages: where there are more of them than clusters, those left without a cluster join the names of the latest of
    the stages, so that their images count as wrong.

    Args:
        logits: Scores of all classes for the test images, [N, C].
        test: Labelled test images.
        known: Names of classes that need no matching.
        stages: Output ids of each stage to match.
    """
    outputs = [output for stage in sorted(stages) for output in stages[stage]]
    names = _names(test)
    new = [index for index, name in enumerate(names) if name not in set(known)]
    truth = [names[index] for index in new]
    classes = tuple(sorted(set(truth)))
    clusters = logits[new][:, outputs].argmax(dim=1).tolist() if new else []
    found = Matching.solve(min(stages), clusters, truth, len(outputs), classes, "test").truth_of
    result, start = {}, 0
    for stage in sorted(stages):
        mine = found[start : start + len(stages[stage])]
        start += len(stages[stage])
        own = tuple(name for name in mine if name is not None)
        if stage == max(stages):
            own += tuple(name for name in classes if name not in found)
        result[stage] = StageTruth(Matching(stage, mine, "test"), own)
    return result


def score_learner(
    logits: Tensor,
    test: Images,
    base_names: Sequence[str],
    class_stages: Sequence[int],
    truths: Sequence[StageTruth],
) -> tuple[Scores, int]:
    """Score joint-head outputs on test images; images of classes that were never seen are left out.

    Args:
        logits: Scores of all classes, [N, C].
        test: Labelled test images.
        base_names: Names of the base classes in the order of their outputs.
        class_stages: Stage of each output, [C].
        truths: What the clusters of stages 1, 2, … stand for.

    Returns:
        The scores and the number of images left out.

    Raises:
        InlayError: If no test image is of a class that was seen.
    """
    stage_of = {name: 0 for name in base_names}
    for truth in truths:
        stage_of |= {name: truth.matching.stage for name in truth.names}
    names = _names(test)
    kept = [index for index, name in enumerate(names) if name in stage_of]
    if not kept:
        raise InlayError(
            f"None of the test images is of a class of this run; its classes are: {', '.join(sorted(stage_of))}."
        )
    truth_names = [names[index] for index in kept]
    matched_on: MatchedOn | None = None
    if truths:
        matched_on = "train" if all(t.matching.matched_on == "train" for t in truths) else "test"
    scores = score(
        logits[kept],
        map_truth(truth_names, base_names, [truth.matching for truth in truths]),
        np.asarray(class_stages),
        np.asarray([stage_of[name] for name in truth_names]),
        matched_on=matched_on,
    )
    return scores, len(names) - len(kept)


def _names(images: Images) -> list[str]:
    if images.labels is None:
        raise InlayError("These images have no labels; give a folder with one sub-folder per class.")
    return [images.class_names[label] for label in images.labels.tolist()]


def _damaged(reason: str) -> InlayError:
    return InlayError(f"The matching was damaged or edited by hand ({reason}); put back the file that inlay wrote.")
