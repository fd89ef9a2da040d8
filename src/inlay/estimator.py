"""The learner as an estimator of scikit-learn."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import StandardScaler
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from inlay.data import ImageSet
from inlay.errors import InlayError, Interrupted
from inlay.learner import Learner

__all__ = ["InlayClassifier", "RefusedInputError"]

_Array = npt.NDArray[Any]

_SMALLEST_SIDE = 8
_LARGEST_DEVIATION = 4.0
# Neighbouring features have nothing to do with each other, so that no view of them but themselves makes sense.
_FOR_FEATURES = {"base.view": "none", "base.contrastive": 0.0, "first_view": "none", "second_view": "none"}


class RefusedInputError(InlayError, ValueError):
    """Data that cannot be learned from or classified, as scikit-learn expects to hear of it."""


class InlayClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Learns labelled classes with `fit`, then new ones with `partial_fit`: those of labels, or those it finds.

    Samples are images, [N, H, W] or [N, H, W, C] in uint8 or in floats from 0 to 1, or any features [N, D]. Features
    are standardised and laid out as a grey image, each a square of its own.

    Args:
        backbone: Name of a backbone, see `inlay.backbones.names`.
        preset: Settings to start from, see `inlay.settings.preset_names`.
        epochs: Passes over the samples in each stage; None takes those of the preset.
        settings: Changes to the preset by dotted path, such as {"training.batch": 64}.
        seed: Seed of everything random.
        device: "cpu", "cuda" or "auto".

    Attributes:
        classes_: Labels in the order of the columns of `predict_proba`. New classes follow those of `fit`; discovered
            ones as the next numbers where labels are numbers, else by their names in the learner.
        learner_: The learner, with all that is not an estimator's: `save`, `export`, `rollback`.
        sample_shape_: Shape of a sample.
        n_features_in_: Length of its first dimension, which is the number of features [N, D].

    Example:
        >>> classifier = InlayClassifier(backbone="resnet8").fit(images, labels)  # doctest: +SKIP
        >>> classifier.partial_fit(unlabelled, n_new=3).predict(images)  # doctest: +SKIP
    """

    classes_: _Array
    learner_: Learner
    sample_shape_: tuple[int, ...]

    def __init__(
        self,
        backbone: str = "resnet18",
        *,
        preset: str = "inlay",
        epochs: int | None = None,
        settings: Mapping[str, Any] | None = None,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        self.backbone = backbone
        self.preset = preset
        self.epochs = epochs
        self.settings = settings
        self.seed = seed
        self.device = device

    def fit(self, X: Any, y: Any) -> Self:
        """Learn labelled classes; whatever was learned before is forgotten.

        Args:
            X: Samples, [N, H, W], [N, H, W, C] or [N, D].
            y: Their labels, [N], numbers or strings.

        Raises:
            ValueError: If samples or labels are not fit for it; such errors of inlay are a `RefusedInputError`.
        """
        X, y = validate_data(self, X, y, allow_nd=True, ensure_min_samples=2)
        check_classification_targets(y)
        classes, indices = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise RefusedInputError("Samples of one class alone teach nothing; give at least 2 classes.")
        self.sample_shape_ = X.shape[1:]
        self._scaler = StandardScaler().fit(X) if X.ndim == 2 else None
        learner = Learner(
            self.backbone, preset=self.preset, settings=self._changes(), seed=self.seed, device=self.device
        )
        with _refusals_for_scikit_learn():
            learner.fit(self._images(X, indices, [str(label) for label in classes]))
        self.learner_, self.classes_ = learner, classes
        return self

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        n_new: int | None = None,
        *,
        classes: Any = None,
    ) -> Self:
        """Learn new classes: those of the labels or, without labels, those found; a first call with labels is a `fit`.

        Args:
            X: Samples of the shape that was fitted.
            y: Their labels, none of them known; None finds new classes.
            n_new: Number of new classes in samples without labels; estimated by default.
            classes: All labels of the first call, as scikit-learn gives them; those in `y` by default.

        Raises:
            NotFittedError: If nothing was fitted yet and there are no labels.
            ValueError: If the samples are not fit for it, or a label is known.
        """
        if not hasattr(self, "learner_"):
            return self._first_fit(X, y, classes)
        if y is not None:
            return self._learn(X, y)
        X = self._checked(X)
        with _refusals_for_scikit_learn():
            self.learner_.discover(self._images(X), n_new)
        names = self.learner_.classes.names[len(self.classes_) :]
        self.classes_ = np.concatenate([self.classes_, _more_labels(self.classes_, names)])
        return self

    def predict(self, X: Any) -> _Array:
        """Return the label of the most probable class of each sample, [N]."""
        probabilities = self.predict_proba(X)
        labels: _Array = self.classes_[probabilities.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the probability of each class of `classes_`, [N, K], for each sample."""
        check_is_fitted(self, "learner_")
        with _refusals_for_scikit_learn():
            logits = self.learner_.knowledge.logits(self._images(self._checked(X)))
        probabilities: npt.NDArray[np.float64] = logits.double().softmax(dim=1).numpy()
        return probabilities

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _first_fit(self, X: Any, y: Any, classes: Any) -> Self:
        if y is None:
            raise NotFittedError("There are no classes yet to add new ones to; call fit with labels first.")
        missing = [] if classes is None else sorted(set(np.asarray(classes).tolist()) - set(np.asarray(y).tolist()))
        if missing:
            raise RefusedInputError(f"There is no sample of the class {missing[0]!r}; give some, or leave it out.")
        return self.fit(X, y)

    def _learn(self, X: Any, y: Any) -> Self:
        """Learn new classes that come with labels."""
        X, y = validate_data(self, X, y, allow_nd=True, reset=False)
        X = self._checked(X)
        classes, indices = np.unique(y, return_inverse=True)
        known = np.intersect1d(classes, self.classes_).tolist()
        if known:
            raise RefusedInputError(
                f"The class {known[0]!r} is known already, and samples of known classes are not learned again; give "
                f"samples of new classes alone."
            )
        with _refusals_for_scikit_learn():
            self.learner_.learn(self._images(X, indices, [str(label) for label in classes]))
        self.classes_ = np.concatenate([self.classes_, classes])
        return self

    def _changes(self) -> dict[str, Any]:
        epochs = {} if self.epochs is None else {f"{part}training.epochs": self.epochs for part in ("", "base.")}
        return {**(_FOR_FEATURES if self._scaler is not None else {}), **epochs, **(self.settings or {})}

    def _checked(self, X: Any) -> _Array:
        checked: _Array = validate_data(self, X, allow_nd=True, reset=False)
        if checked.shape[1:] != self.sample_shape_:
            raise RefusedInputError(
                f"Samples have the shape {list(checked.shape[1:])}, but those of fit had {list(self.sample_shape_)}; "
                f"give such samples."
            )
        return checked

    def _images(self, X: _Array, labels: _Array | None = None, names: Sequence[str] | None = None) -> ImageSet:
        pixels = X if self._scaler is None else _laid_out(self._scaler.transform(X))
        return ImageSet.from_arrays(pixels, labels, names, origin="X")


def _laid_out(features: _Array) -> npt.NDArray[np.uint8]:
    """Turn standardised features, [N, D], into grey images: a square of equal pixels for each, row after row."""
    side = math.ceil(math.sqrt(features.shape[1]))
    pixels = math.ceil(_SMALLEST_SIDE / side)
    squares = np.zeros((len(features), side * side))
    squares[:, : features.shape[1]] = features.clip(-_LARGEST_DEVIATION, _LARGEST_DEVIATION) / _LARGEST_DEVIATION
    levels = ((squares + 1) * 127.5).round().astype(np.uint8).reshape(-1, side, side)
    return levels.repeat(pixels, axis=1).repeat(pixels, axis=2)


def _more_labels(known: _Array, names: Sequence[str]) -> _Array:
    """Return the labels of discovered classes: the next numbers, or names."""
    if known.dtype.kind in "biuf":
        # As a number of Python, since the next one may be too large for the type of the labels.
        return np.asarray(known.max().item() + 1 + np.arange(len(names)))
    return np.array(names, dtype=object if known.dtype == object else None)


@contextmanager
def _refusals_for_scikit_learn() -> Iterator[None]:
    try:
        yield
    except Interrupted:
        raise
    except InlayError as error:
        raise RefusedInputError(str(error)) from error
