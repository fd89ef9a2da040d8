"""A discovery stage from a pile: sort it, count the new classes, learn them, and see what was forgotten."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor, nn

from inlay.calibration import Calibration
from inlay.data.images import Images
from inlay.discovery.forgetting import (
    Correction,
    ForgettingEstimate,
    estimated_forgetting,
    forgetting_on,
)
from inlay.engine.progress import counting
from inlay.engine.randomness import derive_seed, generator
from inlay.errors import InlayError
from inlay.knowledge import Knowledge
from inlay.methods import method
from inlay.piles import SortedPile, count_new_classes, look_again, sort_pile
from inlay.pipeline import Workshop, learn_stage, stage_identity
from inlay.requirements import check_unlabelled
from inlay.settings import Settings

__all__ = ["Search", "accepted", "discover_in_pile", "forgetting_of", "search_identity"]

_NO_TRIALS = Calibration(accuracy=0.0, known_scores=(), stretch=1.0)


@dataclass(frozen=True)
class Search:
    """How new classes are looked for.

    Attributes:
        classes: Number of new classes; None estimates it.
        sort: Whether images of known classes are sorted out first.
        error: Share of known images that may be taken for new.
        max_forgetting: Largest estimated drop in accuracy on old classes, 0 to 1, with which the stage is accepted;
            None accepts any.
    """

    classes: int | None = None
    sort: bool = False
    error: float = 0.05
    max_forgetting: float | None = None

    @property
    def is_plain(self) -> bool:
        """Whether all images are learned, as so many classes, whatever is forgotten."""
        return self.classes is not None and not self.sort and self.max_forgetting is None


def search_identity(images: Images, search: Search, settings: Settings, seed: int, index: int) -> str:
    """Return a hash of everything, besides the stages before, that decides the outcome of a search.

    What may be forgotten does not: a stage that was refused goes on from its end if more is allowed.
    """
    chosen = [] if search.classes is not None and not search.sort else [search.sort, search.error]
    return stage_identity(images, search.classes or 0, settings, seed, index, *chosen)


def discover_in_pile(
    knowledge: Knowledge,
    images: Images,
    search: Search,
    settings: Settings,
    workshop: Workshop,
    calibration: Calibration | None,
    source: str = "",
) -> Knowledge | None:
    """Find and learn the new classes of a pile.

    Args:
        knowledge: What is known; it is not changed.
        images: Unlabelled images.
        search: How new classes are looked for.
        settings: All settings of the stage.
        workshop: Where it is computed.
        calibration: What the run knows of its own errors; None if nothing was kept out of training.
        source: Where the images were, see `inlay.medoids.place_of`.

    Returns:
        What is known after the stage, with the images that stand for its classes; None if nothing is new in the pile.

    Raises:
        InlayError: If the pile cannot be sorted, forgetting is limited and cannot be told, too much would be
            forgotten, or training is stopped or diverges.
    """
    if search.max_forgetting is not None and not method(settings.method).joint:
        raise InlayError(
            f"The method {settings.method!r} trains no joint head, by which forgetting is estimated; leave "
            f"--max-forgetting out, or choose another method, such as adm or inlay."
        )
    if search.is_plain:
        assert search.classes is not None
        after = learn_stage(knowledge, images, search.classes, settings, workshop, source=source)
        if calibration is None or not isinstance(after.head, nn.Linear):
            return after
        return accepted(knowledge, after, None, calibration, {}, workshop)
    index = knowledge.record.index + 1
    identity = search_identity(images, search, settings, knowledge.seed, index)
    found: dict[str, Any] = {}
    with counting(workshop.progress, f"looking at {len(images):,} images") as report:
        features = knowledge.features(images, report)
    pile = _sorted(knowledge, features, search, calibration) if search.sort else None
    if pile is not None and not pile.has_new:
        workshop.progress.note(_nothing_new(pile))
        return None
    classes = search.classes
    if classes is None:
        classes = _counted(features, pile, knowledge, calibration or _NO_TRIALS, found, workshop)
    if pile is not None:
        pile = look_again(knowledge, features, pile, classes)
        found |= _told(pile, images)
        images, features = images.select(pile.new.cpu()), features[pile.new]
    check_unlabelled(images, classes)
    after = learn_stage(knowledge, images, classes, settings, workshop, identity, source, features)
    if not isinstance(after.head, nn.Linear):
        return replace(after, record=replace(after.record, found=found))
    return accepted(knowledge, after, search.max_forgetting, calibration, found, workshop)


def forgetting_of(before: Knowledge, after: Knowledge, correction: Correction | None = None) -> ForgettingEstimate:
    """Estimate the drop in accuracy on the classes known before a stage, without images.

    It is told on features of images of base classes that were kept out of training, where a run has them. Those of a
    network that the stage has left as it was are true, and nothing is corrected. Without such features it is estimated
    on features drawn from the class statistics, which misses most of what images lose that lie far out in their class.

    Raises:
        InlayError: If one of the heads is not a joint one.
    """
    if not all(isinstance(knowledge.head, nn.Linear) for knowledge in (before, after)):
        raise InlayError("Forgetting can be estimated with a joint head only; choose another method.")
    if before.reference is not None and after.reference is not None:
        there, here = (before.reference.features, before.scores), (after.reference.features, after.scores)
        return forgetting_on(there, here, before.reference.labels, None if after.reference.exact else correction)
    randomness = generator(derive_seed(before.seed, "forgetting", after.record.index), "noise", device=before.device)
    heads = [(knowledge.statistics, knowledge.scores) for knowledge in (before, after)]
    return estimated_forgetting(heads[0], heads[1], randomness, correction)


def accepted(
    before: Knowledge,
    after: Knowledge,
    max_forgetting: float | None,
    calibration: Calibration | None,
    found: Mapping[str, Any],
    workshop: Workshop,
) -> Knowledge:
    """Write down how much a stage has forgotten, unless that is too much.

    Args:
        before: What was known before the stage.
        after: What is known after it.
        max_forgetting: Largest estimated drop in accuracy on old classes, 0 to 1; None accepts any.
        calibration: What the run knows of its own errors; None if nothing was kept out of training.
        found: What else was found out about the stage.
        workshop: Where it was computed.

    Raises:
        InlayError: If too much would be forgotten.
    """
    drop = forgetting_of(before, after, None if calibration is None else calibration.correction)
    told = {"drop": drop.drop, "standard_error": drop.standard_error, "uncorrected": drop.uncorrected}
    if max_forgetting is not None and drop.drop > max_forgetting:
        raise InlayError(
            f"The stage was not accepted, as accuracy on the old classes would fall by about {100 * drop.drop:.1f} "
            f"points, more than {100 * max_forgetting:g}; the run is as it was. Pass a larger --max-forgetting "
            f"to accept it."
        )
    moves = "falls" if drop.drop >= 0 else "rises"
    workshop.progress.note(f"Accuracy on the old classes {moves} by about {100 * abs(drop.drop):.1f} points.")
    return replace(after, record=replace(after.record, found={**found, "forgetting": told}))


def _sorted(knowledge: Knowledge, features: Tensor, search: Search, calibration: Calibration | None) -> SortedPile:
    if calibration is None:
        raise InlayError(
            "Images of known classes can be sorted out only in a run that kept some out of training; pass --all-new if "
            "all images are new, or fit again with --held-out 0.1."
        )
    return sort_pile(knowledge, features, calibration, search.error)


def _told(pile: SortedPile, images: Images) -> dict[str, Any]:
    parts = {name: int(getattr(pile, name).sum()) for name in ("known", "new", "neither")}
    prints = images.fingerprints()
    sorted_out = {
        name: [prints[index] for index in getattr(pile, name).nonzero().flatten().tolist()]
        for name in ("known", "neither")
    }
    share = asdict(pile.share)
    return {"pile": len(pile.scores), **parts, "new_share": share, "error": pile.error, "sorted_out": sorted_out}


def _nothing_new(pile: SortedPile) -> str:
    return (
        f"Nothing new was found among {len(pile.scores):,} images: {int(pile.new.sum()):,} look new, which is what "
        f"errors among known ones explain; pass --all-new to learn them all the same."
    )


def _counted(
    features: Tensor,
    pile: SortedPile | None,
    knowledge: Knowledge,
    calibration: Calibration,
    found: dict[str, Any],
    workshop: Workshop,
) -> int:
    """Count the classes among all images, or among those that sorting has taken for new."""
    if pile is not None:
        features, calibration = features[pile.new], calibration.after_sorting
    seed = derive_seed(knowledge.seed, "class count", knowledge.record.index)
    count = count_new_classes(knowledge, features, calibration, seed)
    found["classes"] = {"estimate": count.estimate, "low": count.low, "high": count.high, "loose": count.loose}
    found["curve"] = [[point.k, point.score] for point in count.curve]
    noun = "class" if count.estimate == 1 else "classes"
    workshop.progress.note(
        f"About {count.estimate} new {noun}, between {count.low} and {count.high}; pass --classes to say it better."
    )
    return count.estimate
