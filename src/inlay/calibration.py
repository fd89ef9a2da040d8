"""What a run knows of its own errors: measured while labelled images were at hand, then kept."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from inlay.discovery.class_count_interval import UNCALIBRATED, Widening
from inlay.discovery.class_count_interval import calibrate as widening_of
from inlay.discovery.forgetting import Correction, fit_correction
from inlay.errors import InlayError

__all__ = ["Calibration", "HiddenTrial", "believed", "missed"]

_CLASSES_TO_BELIEVE_HALF = 4


@dataclass(frozen=True)
class HiddenTrial:
    """What happened when some base classes were hidden, and looked for again by a network that had not seen them.

    Attributes:
        hidden: Names of the hidden classes.
        estimate: Estimated number of them, from their images alone.
        auroc: Probability that an image of a hidden class scores newer than one of a known class.
        known_error: Share of known images that were taken for new.
        new_found: Share of the images of hidden classes that were taken for new.
        estimated_drop: Estimated drop in accuracy on the known classes by the discovery stage.
        true_drop: The drop on images that were kept out of training.
        spread: How much looser the hidden classes were than expected; see `relative_spread`.
        sorted_estimate: Estimated number of them from what sorting took for new; None where the network stays as it is,
            as there the count does not depend on it.
        sorted_spread: How loose what sorting took for new was, likewise.
    """

    hidden: tuple[str, ...]
    estimate: int
    auroc: float
    known_error: float
    new_found: float
    estimated_drop: float
    true_drop: float
    spread: float = 1.0
    sorted_estimate: int | None = None
    sorted_spread: float | None = None

    @property
    def after_sorting(self) -> "HiddenTrial":
        """The trial, with what it taught of piles that are sorted in place of those that are all new."""
        if self.sorted_estimate is None or self.sorted_spread is None:
            return self
        return replace(self, estimate=self.sorted_estimate, spread=self.sorted_spread)


def believed(measured: Sequence[tuple[int, float]]) -> float:
    """Return what is believed of a factor that hiding classes has measured: the more were hidden, the more of it.

    Args:
        measured: Of each trial, the number of hidden classes and the factor, above 0; without any it is 1.
    """
    total = sum(classes * math.log(factor) for classes, factor in measured)
    return math.exp(total / (sum(classes for classes, _ in measured) + _CLASSES_TO_BELIEVE_HALF))


def missed(hidden: int, estimate: int) -> float:
    """Return by what an estimated number of classes had to be multiplied; an error of one class says nothing."""
    return hidden / (estimate + max(-1, min(1, hidden - estimate)))


@dataclass(frozen=True)
class Calibration:
    """How far a run can trust itself.

    Attributes:
        accuracy: Accuracy of the base stage on images that were kept out of it.
        known_scores: Novelty scores of those images by the network after the base stage.
        stretch: How much further known images lie than features drawn from their statistics; see `replay_stretch`.
        trials: What hiding base classes taught; empty if none were hidden.
    """

    accuracy: float
    known_scores: tuple[float, ...]
    stretch: float
    trials: tuple[HiddenTrial, ...] = ()

    @property
    def widening(self) -> Widening:
        """How far the interval around an estimated number of classes has to reach."""
        pairs = [(len(trial.hidden), trial.estimate) for trial in self.trials]
        return widening_of(pairs) if pairs else UNCALIBRATED

    @property
    def spread(self) -> float:
        """How much looser than expected new classes are taken to be."""
        return believed([(len(trial.hidden), trial.spread) for trial in self.trials])

    @property
    def factor(self) -> float:
        """What estimated numbers of classes have to be multiplied by where they are too low or too high throughout.

        A network that was trained lays new classes closer together, or further apart, than others. Where it stays as it
        is, the rule was fitted to many piles, and errors go both ways. Runs from before the two were told apart have
        counted their hidden classes otherwise than new ones.
        """
        told = [trial for trial in self.trials if trial.sorted_estimate is not None]
        return believed([(len(trial.hidden), missed(len(trial.hidden), trial.estimate)) for trial in told])

    @property
    def times_factor(self) -> "Calibration":
        """The same, with the estimates of the trials multiplied by the factor."""
        factor = self.factor
        trials = (replace(trial, estimate=max(1, round(trial.estimate * factor))) for trial in self.trials)
        return replace(self, trials=tuple(trials))

    @property
    def after_sorting(self) -> "Calibration":
        """The same for piles that are sorted: sorting finds the images that lie together, and some that are not new."""
        return replace(self, trials=tuple(trial.after_sorting for trial in self.trials))

    @property
    def correction(self) -> Correction:
        """How true drops in accuracy follow from estimated ones."""
        return fit_correction([(trial.estimated_drop, trial.true_drop) for trial in self.trials])

    def to_json(self) -> dict[str, Any]:
        """Return plain objects."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Calibration":
        """Rebuild a calibration from what `to_json` returned.

        Raises:
            InlayError: If it is not what `to_json` writes.
        """
        try:
            trials = [HiddenTrial(**{**trial, "hidden": tuple(trial["hidden"])}) for trial in data["trials"]]
            scores = tuple(float(score) for score in data["known_scores"])
            return cls(float(data["accuracy"]), scores, float(data["stretch"]), tuple(trials))
        except (KeyError, TypeError, ValueError) as error:
            raise InlayError(
                f"The calibration was damaged or edited by hand ({error}); put back the file that inlay wrote."
            ) from error
