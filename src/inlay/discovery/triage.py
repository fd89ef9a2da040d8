"""Triage of unlabelled images: which are of a known class, which are new, and which are neither."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.discovery.neighbours import nearest_neighbours
from inlay.discovery.statistics import ClassStatistics
from inlay.discovery.surprise import class_surprise, common_surprise
from inlay.errors import InlayError

__all__ = [
    "NoveltyRule",
    "ShareEstimate",
    "Triage",
    "calibrate_threshold",
    "estimated_new_share",
    "loneliness",
    "novelty_scores",
    "replay_stretch",
    "replayed_scores",
    "separation",
]

NoveltyRule = Literal["mahalanobis", "relative", "energy", "softmax", "knn-to-samples", "combined"]

_ROWS = 4096
_SMALLEST = 1e-12
_SMALLEST_DISTANCE = 1e-6


@dataclass(frozen=True)
class Triage:
    """Thresholds that part known images from new ones, and new ones from those without company.

    Attributes:
        threshold: Novelty score above which an image is not of a known class.
        error: Share of known images that score above it, as promised when it was calibrated.
        lonely: Loneliness above which an image that is not known is neither; infinite if none is.
    """

    threshold: float
    error: float
    lonely: float = math.inf

    def split(self, scores: Tensor, lonely: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Part a pile of images.

        Args:
            scores: Novelty scores, [N].
            lonely: Loneliness of each image, [N]; see `loneliness`. Without it no image is neither.

        Returns:
            Masks of the known, the new, and those that are neither, bool [N]; each image is in exactly one of them.

        Raises:
            ValueError: If the shapes differ.
        """
        if scores.ndim != 1 or (lonely is not None and lonely.shape != scores.shape):
            raise ValueError("novelty scores and loneliness must both be [N]")
        known = scores <= self.threshold
        alone = torch.zeros_like(known) if lonely is None else lonely > self.lonely
        return known, ~known & ~alone, ~known & alone


@dataclass(frozen=True)
class ShareEstimate:
    """Share of new images in a pile, with an interval.

    Attributes:
        share: The estimate, 0 to 1; `low` and `high` are the ends of the interval.
    """

    share: float
    low: float
    high: float


@torch.no_grad()
def novelty_scores(
    features: Tensor,
    statistics: ClassStatistics,
    weight: Tensor,
    bias: Tensor,
    rule: NoveltyRule = "combined",
    *,
    reference: Tensor | None = None,
    shrinkage: float = 0.1,
    neighbours: int = 5,
) -> Tensor:
    """Score how little images look like any known class: the higher, the newer.

    Scores of one rule can be compared with each other, those of two rules cannot.

    - "mahalanobis": (x - μ_k)ᵀ Σ_k⁻¹ (x - μ_k) + log |Σ_k| for the class k in which it is least: -2 log of the density
      of the nearest class but for a constant. Σ_k is (1 - s) of the class's covariance and s of the mean covariance,
      for the shrinkage s, plus a hundredth of the mean variance on the diagonal. With fewer images than features a
      covariance says nothing of most directions; then a sphere of the mean variance takes its place. Where classes
      share their correlations, Σ is the mean covariance plus the whole mean variance on the diagonal, for all classes.
    - "relative": the same minus that of one Gaussian for all known classes together, each of them with equal weight;
      with shared correlations minus that about the centre of all classes under the same Σ.
    - "energy": -log Σ_c exp(logit_c).
    - "softmax": -max_c log p_c, which orders images as 1 - max_c p_c does and does not saturate.
    - "knn-to-samples": distance to the n-th nearest of the reference.
    - "combined": sum of "mahalanobis", "relative" and "energy", each minus its mean and divided by its standard
      deviation over the reference: a compromise, as the best of them is another one for each network.

    Args:
        features: Features, [N, D].
        statistics: Statistics of the known classes, of which one or more are not empty.
        weight: Weight of the linear head over the known classes, [C, D].
        bias: Bias of the head, [C].
        rule: One of the rules above.
        reference: Features of the known classes, [M, D]: of images kept out of training, or drawn from the statistics;
            for the two rules that name it.
        shrinkage: Share s of the mean covariance in that of each class, 0 to 1; 1 is one covariance for all.
        neighbours: n of "knn-to-samples", 1 to M.

    Returns:
        Scores, [N], float64.

    Raises:
        ValueError: If a shape is wrong, a feature is not finite, all classes are empty, a number is out of its range,
            or the reference is missing.
    """
    _check(features, statistics, weight, bias, rule, shrinkage)
    points = features.double()
    if rule in ("mahalanobis", "relative"):
        nearest = class_surprise(points, statistics, shrinkage)
        return nearest if rule == "mahalanobis" else nearest - common_surprise(points, statistics)
    if rule in ("energy", "softmax"):
        logits = _logits(points, weight, bias)
        return -logits.logsumexp(dim=1) if rule == "energy" else -logits.log_softmax(dim=1).amax(dim=1)
    if reference is None or reference.ndim != 2 or reference.shape[1] != features.shape[1] or len(reference) == 0:
        raise ValueError(f"the rule {rule!r} needs a reference [M, {features.shape[1]}] of the known classes")
    if rule == "knn-to-samples":
        return _distance_to(points, reference.double(), neighbours)
    return _combined(points, reference.double(), statistics, weight, bias, shrinkage)


def replayed_scores(
    statistics: ClassStatistics,
    weight: Tensor,
    bias: Tensor,
    generator: torch.Generator,
    rule: NoveltyRule = "combined",
    per_class: int = 200,
    reference: Tensor | None = None,
) -> Tensor:
    """Score features that are drawn from the statistics, to calibrate on when there are no images of known classes.

    Such scores are optimistic: the statistics were measured on images that the network was trained on, and drawn
    features have no odd members. Several times the promised share of real images lies above a threshold calibrated
    on them: 7 to 39 % instead of 5 % on small networks for digits. Prefer `novelty_scores` of images kept out of
    training; where there were some once, use `replay_stretch`.

    Args:
        statistics: Statistics of the known classes.
        weight: Weight of the head, [C, D].
        bias: Bias of the head, [C].
        generator: Source of the features.
        rule: As for `novelty_scores`.
        per_class: Features drawn of each class, n, 1 or more.
        reference: As for `novelty_scores`, the same as for the images to be scored; None draws one.

    Returns:
        Scores, class after class, [K'·n], float64, of the K' classes that are not empty.
    """
    usual = statistics.sample(per_class, generator)[0] if reference is None else reference
    drawn, _ = statistics.sample(per_class, generator)
    return novelty_scores(drawn, statistics, weight, bias, rule, reference=usual)


def replay_stretch(known_scores: Tensor, replayed: Tensor, error: float) -> float:
    """Measure how much too close to their median a threshold from replayed scores is.

    It is measured while there are images kept out of training, and serves `calibrate_threshold` in later stages, when
    there are none: it repairs most of the optimism of replayed scores but promises nothing.

    Args:
        known_scores: Scores of images that were kept out of training, [n].
        replayed: Scores of replayed features under the same rule and reference, [m].
        error: As for `calibrate_threshold`.

    Returns:
        Distance of the true threshold from the median of the replayed scores, divided by that of theirs; at least 1.
    """
    middle = replayed.double().median().item()
    true, optimistic = (calibrate_threshold(scores, error) - middle for scores in (known_scores, replayed))
    return max(1.0, true / max(optimistic, _SMALLEST))


def separation(known: Tensor, new: Tensor) -> float:
    """Return the probability that a new image scores above a known one, equals counted half: the area under the ROC.

    Args:
        known: Scores of known images, [n].
        new: Scores of new ones, [m].
    """
    from sklearn.metrics import roc_auc_score  # takes seconds to import, so only when it is needed

    truth = torch.cat([torch.zeros_like(known), torch.ones_like(new)])
    return float(roc_auc_score(truth.cpu().numpy(), torch.cat([known, new]).cpu().numpy()))


def calibrate_threshold(known_scores: Tensor, error: float, stretch: float = 1.0) -> float:
    """Return the score that one more known image exceeds with a probability of at most `error`.

    This is the split-conformal quantile: of n scores the one of rank ⌈(n + 1)(1 - error)⌉ from below, a little above
    the plain quantile. The promise holds for any distribution of scores and any n, on average over calibration sets,
    if the images to come are like those calibrated on; it does not hold for each class by itself.

    Args:
        known_scores: Scores of known images that the network was not trained on, [n].
        error: Share of known images that may be taken for new, above 0 and below 1.
        stretch: Factor on the distance of the threshold from the median; see `replay_stretch`.

    Raises:
        InlayError: If there are too few scores for so small an error.
        ValueError: If the scores are not finite or the error is out of its range.
    """
    if known_scores.ndim != 1 or not bool(known_scores.isfinite().all()) or not 0 < error < 1:
        raise ValueError(f"scores must be finite [n] and the error between 0 and 1; got {error}")
    count = len(known_scores)
    # Rounded, as (n + 1)(1 - error) may come out a little above a whole number.
    rank = math.ceil(round((count + 1) * (1 - error), 9))
    if rank > count:
        raise InlayError(
            f"An error of {error:g} cannot be promised from {count} known images; give at least "
            f"{math.ceil(round(1 / error - 1, 9))} or allow a larger error."
        )
    threshold = known_scores.double().kthvalue(max(rank, 1)).values.item()
    middle = known_scores.double().median().item()
    return threshold if stretch == 1 else middle + stretch * (threshold - middle)


@torch.no_grad()
def loneliness(features: Tensor, neighbours: int = 10) -> Tensor:
    """Measure how far each image of a pile is from its neighbours, compared with how far those are from theirs.

    It is the mean distance to the nearest other images of the pile, divided by the median of the same over those
    images; distances are between L2-normalised features. About 1 is usual in dense and in loose classes alike, so
    that a threshold calibrated on images of known classes serves for new ones.

    Args:
        features: Features of all images of the pile, [N, D].
        neighbours: Images that count as company, 1 to N - 1.

    Returns:
        Loneliness, above 0, [N], float64.

    Raises:
        ValueError: If a shape is wrong, a feature is not finite, or there are too few images.
    """
    nearest = nearest_neighbours(features, neighbours)
    directions = F.normalize(features.double(), dim=1)
    distance = directions.new_zeros(len(features))
    for column in nearest.T:
        distance += (directions - directions[column]).norm(dim=1) / neighbours
    usual = distance[nearest].median(dim=1).values
    return (distance + _SMALLEST_DISTANCE) / (usual + _SMALLEST_DISTANCE)


@torch.no_grad()
def estimated_new_share(
    scores: Tensor,
    known_scores: Tensor,
    generator: torch.Generator,
    level: float = 0.5,
    confidence: float = 0.95,
    rounds: int = 1000,
) -> ShareEstimate:
    """Estimate which share of a pile is new, without saying which images.

    Up to the score below which the share `level` of known images lie, few images are new, so the share of the pile
    below that score, divided by `level`, is that of known images. New images below it are counted as known: the
    estimate errs to the low side.

    Args:
        scores: Novelty scores of the pile, [N].
        known_scores: Scores of known images that the network was not trained on, [n].
        generator: Source of the bootstrap samples.
        level: Share of known images that lie below the score, above 0 and at most 1.
        confidence: Probability with which the interval should cover the share, of which it covers the noise alone.
        rounds: Bootstrap samples of pile and known images.

    Raises:
        ValueError: If there are no scores or a number is out of its range.
    """
    if scores.ndim != 1 or known_scores.ndim != 1 or len(scores) == 0 or len(known_scores) == 0:
        raise ValueError("novelty scores must be [N] and [n], with N and n above 0")
    if not 0 < level <= 1 or not 0 < confidence < 1 or rounds < 1:
        raise ValueError(f"level and confidence must lie in 0..1, rounds above 0; got {level}, {confidence}, {rounds}")
    pile, known = scores.double(), known_scores.double()
    drawn = [_new_share(_resampled(pile, generator), _resampled(known, generator), level) for _ in range(rounds)]
    tail = (1 - confidence) / 2
    low, high = torch.stack(drawn).quantile(pile.new_tensor([tail, 1 - tail])).tolist()
    return ShareEstimate(_new_share(pile, known, level).item(), low, high)


def _new_share(pile: Tensor, known: Tensor, level: float) -> Tensor:
    threshold = known.kthvalue(max(1, round(level * len(known)))).values
    below = (known <= threshold).double().mean()
    return (1 - (pile <= threshold).double().mean() / below).clamp(0, 1)


def _resampled(values: Tensor, generator: torch.Generator) -> Tensor:
    chosen = torch.randint(len(values), (len(values),), generator=generator, device=generator.device)
    return values[chosen.to(values.device)]


def _logits(points: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return points @ weight.double().T + bias.double()


def _combined(
    points: Tensor, reference: Tensor, statistics: ClassStatistics, weight: Tensor, bias: Tensor, shrinkage: float
) -> Tensor:
    both = torch.cat([reference, points])
    nearest = class_surprise(both, statistics, shrinkage)
    energy = -_logits(both, weight, bias).logsumexp(dim=1)
    parts = torch.stack([nearest, nearest - common_surprise(both, statistics), energy])
    usual = parts[:, : len(reference)]
    spread = usual.std(dim=1, correction=0).clamp_min(_SMALLEST)
    return ((parts[:, len(reference) :] - usual.mean(dim=1, keepdim=True)) / spread[:, None]).sum(dim=0)


def _distance_to(points: Tensor, reference: Tensor, neighbours: int) -> Tensor:
    """Distance to the n-th nearest of the reference, [N]."""
    if not 1 <= neighbours <= len(reference):
        raise ValueError(f"neighbours must lie in 1..{len(reference)}, the size of the reference; got {neighbours}")
    found = points.new_zeros(len(points))
    for start in range(0, len(points), _ROWS):
        distances = torch.cdist(points[start : start + _ROWS], reference)
        found[start : start + _ROWS] = distances.kthvalue(neighbours, dim=1).values
    return found


def _check(
    features: Tensor, statistics: ClassStatistics, weight: Tensor, bias: Tensor, rule: str, shrinkage: float
) -> None:
    if rule not in get_args(NoveltyRule):
        raise ValueError(f"rule must be one of {', '.join(get_args(NoveltyRule))}; got {rule!r}")
    size = statistics.mean.shape[1]
    if features.ndim != 2 or features.shape[1] != size or not bool(features.isfinite().all()):
        raise ValueError(f"features must be finite and [N, {size}]; got {tuple(features.shape)}")
    if weight.ndim != 2 or weight.shape[1] != size or bias.shape != weight.shape[:1] or len(bias) == 0:
        raise ValueError(f"a head needs weight [C, {size}], bias [C]; got {tuple(weight.shape)}, {tuple(bias.shape)}")
    if statistics.present == 0:
        raise ValueError("novelty needs a known class that is not empty")
    if not 0 <= shrinkage <= 1:
        raise ValueError(f"shrinkage must lie in 0..1; got {shrinkage}")
