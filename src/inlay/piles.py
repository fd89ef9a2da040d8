"""A pile of unlabelled images: which are of known classes, which are new, and of how many new classes."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from inlay.calibration import Calibration
from inlay.discovery.class_count import estimate_class_count
from inlay.discovery.class_count_interval import ClassCount
from inlay.discovery.class_graph import count_by_graph
from inlay.discovery.class_spread import count_by_spread
from inlay.discovery.foreign import foreign_limit
from inlay.discovery.groups import LEAST_NEWNESS, newness, stands_out, threshold_in_company
from inlay.discovery.second_look import second_look
from inlay.discovery.statistics import ClassStatistics
from inlay.discovery.triage import (
    ShareEstimate,
    Triage,
    calibrate_threshold,
    estimated_new_share,
    loneliness,
    novelty_scores,
    replay_stretch,
    replayed_scores,
)
from inlay.engine.randomness import derive_seed, generator
from inlay.errors import InlayError
from inlay.knowledge import Knowledge

__all__ = ["SortedPile", "calibrated", "count_classes", "count_new_classes", "look_again", "novelty_of", "sort_pile"]

# Each of them is compared with each class, so that of many classes fewer are drawn.
_DRAWN_PER_CLASS, _MOST_DRAWN = 200, 20_000
_SCORES_KEPT = 5000
# Comparing every image with every other would take too long beyond this.
_MOST_COMPARED = 20_000
_COMPANY = 10
_LONELY_ERROR = 0.02
# New groups are looked for among images that look newer than this share of known ones.
_USUAL = 0.6
# A few new images do not show in the share of those that look new alone. They are looked for as if there were so many.
_LEAST_SHARE = 0.1
# Standard errors by which new images must exceed chance: where images judged alone tell the same, and where not.
_ERRORS_TOGETHER, _ERRORS_ALONE = 1.96, 3.0
# What an image looks like by itself decides between those whose company says the same.
_TIE = 0.01


@dataclass(frozen=True, eq=False)
class SortedPile:
    """A pile taken apart.

    Attributes:
        scores: Novelty score of each image, [N]; the higher, the newer.
        known: Images of known classes, bool [N].
        new: Images that are new, bool [N].
        neither: Images that are not known, and have no company or are too far from all known ones, bool [N].
        share: Estimated share of new images.
        error: Share of known images that are promised not to be taken for new or neither.
        in_company: Whether the images were compared with each other, and not only with what is known.
        stands_out: Whether that comparison finds more new images than chance explains.
    """

    scores: Tensor
    known: Tensor
    new: Tensor
    neither: Tensor
    share: ShareEstimate
    error: float
    in_company: bool = False
    stands_out: bool = False

    @property
    def has_new(self) -> bool:
        """Whether more images are new than errors among known ones explain."""
        more = self.stands_out if self.in_company else self.share.low > 0
        return more and int(self.new.sum()) > 1


def calibrated(knowledge: Knowledge, features: Tensor, labels: Tensor, error: float) -> Calibration:
    """Measure a network on images of its classes that were kept out of training.

    Args:
        knowledge: What is known after the base stage.
        features: Features of the images by its network, [n, D].
        labels: Their classes, [n].
        error: Share of known images that may be taken for new.

    Raises:
        InlayError: If there are too few images for so small an error.
    """
    predicted = _head(knowledge)(features).argmax(dim=1).cpu()
    scores = novelty_of(knowledge, features)
    if len(scores) > _SCORES_KEPT:
        chosen = torch.randperm(len(scores), generator=generator(knowledge.seed, "calibration"))[:_SCORES_KEPT]
        scores = scores[chosen.to(scores.device)]
    # Refuses too few images.
    calibrate_threshold(scores, error)
    return Calibration(
        accuracy=float((predicted == labels.cpu()).double().mean()),
        known_scores=tuple(scores.tolist()),
        stretch=replay_stretch(scores, _replayed(knowledge), error),
    )


def sort_pile(knowledge: Knowledge, features: Tensor, calibration: Calibration, error: float) -> SortedPile:
    """Part a pile of images into known, new and neither.

    After the base stage the promise rests on images that were kept out of it. After a discovery stage there are none
    for the network as it is now; then features drawn from the statistics stand for them, stretched as they had to be
    after the base stage.

    Where features of images that were kept out are known for the network as it is, images are then compared with each
    other, which finds more of what is new, and tells better whether anything is.

    Args:
        knowledge: What is known.
        features: Features of the pile by its network, [N, D].
        calibration: What the run knows of its errors.
        error: Share of known images that may be taken for new.

    Raises:
        InlayError: If the head is not a joint one, or so small an error cannot be promised.
    """
    scores = novelty_of(knowledge, features)
    if knowledge.record.index == 0:
        known_scores, stretch = scores.new_tensor(calibration.known_scores), 1.0
    else:
        known_scores, stretch = _replayed(knowledge), calibration.stretch
    threshold = calibrate_threshold(known_scores, error, stretch)
    share = estimated_new_share(scores, known_scores, generator(_seed(knowledge), "share", device=scores.device))
    lonely, limit = _company(features, scores <= threshold)
    known, new, neither = Triage(threshold, error, limit).split(scores, lonely)
    foreign = scores > foreign_limit(scores, threshold)
    pile = SortedPile(scores, known, new & ~foreign, neither | foreign, share, error)
    held_out = knowledge.reference
    if held_out is None or not held_out.exact:
        return pile
    return _compared(knowledge, features, held_out.features, known_scores, pile)


def look_again(knowledge: Knowledge, features: Tensor, pile: SortedPile, classes: int) -> SortedPile:
    """Part known and new images of a pile once more, when the number of new classes is known.

    A network that stays as it is lays classes where a linear classifier finds no more than company did.

    Args:
        knowledge: What is known.
        features: Features of the pile by its network, [N, D].
        pile: What a first look has made of it; images that are neither stay so.
        classes: Number of new classes.

    Returns:
        The pile; as it was, where that of a frozen network was compared already, or too few would be new to make so
        many classes.
    """
    if pile.in_company and knowledge.settings.branch.gate == "frozen":
        return pile
    randomness = generator(_seed(knowledge), "second look", device=features.device)
    held_out = knowledge.reference.features if pile.in_company and knowledge.reference is not None else None
    seen, found = ~pile.neither, (knowledge.statistics, classes, pile.error, randomness)
    new = torch.zeros_like(pile.new)
    new[seen] = second_look(features[seen], pile.new[seen], *found, held_out)
    return replace(pile, new=new, known=seen & ~new) if int(new.sum()) > classes else pile


def count_new_classes(knowledge: Knowledge, features: Tensor, calibration: Calibration, seed: int) -> ClassCount:
    """Estimate the number of classes among new images, with an interval as wide as hidden classes taught.

    Args:
        knowledge: What is known.
        features: Features of the new images by its network, [N, D].
        calibration: What the run knows of its errors.
        seed: Seed of everything random.
    """
    count = count_classes(knowledge, features, seed, calibration.spread)
    return count.times(calibration.factor).widened(calibration.times_factor.widening)


def count_classes(knowledge: Knowledge, features: Tensor, seed: int, spread: float = 1.0) -> ClassCount:
    """Estimate the number of classes among new images by what suits the network.

    One that has been trained on the known classes lays others closer together, which hiding classes measures. To one
    that stays as it was, known and new classes are alike, and walks among the images tell more.

    Args:
        knowledge: What is known.
        features: Features of the new images by its network, [N, D].
        seed: Seed of everything random.
        spread: How much looser new classes are than expected, for a network that was trained.
    """
    randomness = generator(seed, "class count", device=features.device)
    if knowledge.settings.leaves_network:
        return count_by_graph(features, knowledge.statistics, randomness)
    if knowledge.statistics.present < 2:
        return estimate_class_count(features, randomness)
    return count_by_spread(features, knowledge.statistics, randomness, spread)


def novelty_of(knowledge: Knowledge, features: Tensor) -> Tensor:
    """Score how little images look like any known class, [N]; the same features always score the same.

    Raises:
        InlayError: If the head is not a joint one.
    """
    head = _head(knowledge)
    return novelty_scores(features, knowledge.statistics, head.weight, head.bias, reference=_drawn(knowledge))


def _compared(
    knowledge: Knowledge, features: Tensor, reference: Tensor, known_scores: Tensor, pile: SortedPile
) -> SortedPile:
    """Part known and new images by the company that they are in; images that are neither stay so."""
    seen, ordered = ~pile.neither, known_scores.double().sort().values
    usual = torch.searchsorted(ordered, pile.scores[seen].double()) / len(ordered)
    laid_in = torch.searchsorted(ordered, novelty_of(knowledge, reference).double()) / len(ordered)
    looks_new = usual > _USUAL
    if not bool(looks_new.any()):
        return pile
    randomness = generator(_seed(knowledge), "groups", device=features.device)
    share = max(_LEAST_SHARE, pile.share.share)
    found = newness(features[seen], reference, knowledge.statistics, looks_new, laid_in > _USUAL, share, randomness)
    in_pile, in_reference = found.pile.double() + _TIE * usual, found.reference.double() + _TIE * laid_in
    threshold = max(LEAST_NEWNESS, threshold_in_company(in_reference, pile.error))
    scores = torch.full_like(pile.scores, 1 + _TIE)
    scores[seen] = in_pile.to(scores)
    new = seen & (scores > threshold)
    surely = stands_out(in_pile, in_reference, threshold, _ERRORS_TOGETHER if pile.share.low > 0 else _ERRORS_ALONE)
    return replace(pile, scores=scores, new=new, known=seen & ~new, in_company=True, stands_out=surely)


def _replayed(knowledge: Knowledge) -> Tensor:
    head, randomness = _head(knowledge), generator(_seed(knowledge), "replayed", device=knowledge.device)
    known, drawn = knowledge.statistics, _drawn(knowledge)
    per_class = _drawn_per_class(known)
    return replayed_scores(known, head.weight, head.bias, randomness, per_class=per_class, reference=drawn)


def _drawn(knowledge: Knowledge) -> Tensor:
    randomness = generator(_seed(knowledge), "reference", device=knowledge.device)
    return knowledge.statistics.sample(_drawn_per_class(knowledge.statistics), randomness)[0]


def _drawn_per_class(known: ClassStatistics) -> int:
    return max(2, min(_DRAWN_PER_CLASS, _MOST_DRAWN // max(known.present, 1)))


def _company(features: Tensor, known: Tensor) -> tuple[Tensor | None, float]:
    """Return the loneliness of each image and from where on it is too large; nothing where that cannot be told."""
    few = int(known.sum()) < 1 / _LONELY_ERROR or len(features) <= _COMPANY
    if few or len(features) > _MOST_COMPARED:
        return None, float("inf")
    lonely = loneliness(features, _COMPANY)
    return lonely, calibrate_threshold(lonely[known], _LONELY_ERROR)


def _seed(knowledge: Knowledge) -> int:
    return derive_seed(knowledge.seed, "pile", knowledge.record.index)


def _head(knowledge: Knowledge) -> nn.Linear:
    if not isinstance(knowledge.head, nn.Linear):
        raise InlayError(
            f"The method {knowledge.settings.method!r} trains no joint head, so old and new images cannot be told "
            f"apart after it; repeat the run with another method, such as adm or inlay."
        )
    return knowledge.head
