import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import inlay
from inlay.errors import InlayError
from inlay.estimator import InlayClassifier, RefusedInputError, _laid_out, _more_labels
from tiny_digits import QUICK, digits

NOT_PASSED = {
    "check_fit_score_takes_y": "after fit, partial_fit takes samples of new classes; those of known ones are refused",
    "check_array_api_input": "run by scikit-learn only where SCIPY_ARRAY_API is set; samples are read as NumPy arrays",
}


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [InlayClassifier(backbone="resnet8", epochs=6, device="cpu", settings={"base.training.batch": 32})],
    expected_failed_checks=lambda _: NOT_PASSED,
)
def test_checks_of_scikit_learn(estimator: InlayClassifier, check: Any) -> None:
    check(estimator)


def _quick() -> InlayClassifier:
    return InlayClassifier(backbone="resnet8", settings=QUICK, device="cpu", seed=7)


def _arrays(*names: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Grey images [N, H, W] of digits, and the digits."""
    chosen = digits(names)
    assert chosen.labels is not None
    return chosen.images[:, 0].numpy(), np.array([int(names[label]) for label in chosen.labels.tolist()])


def test_it_learns_and_finds_what_the_learner_does() -> None:
    images, labels = _arrays("4", "5", "6")
    new, _ = _arrays("1", "2")
    found = _quick().fit(images, labels).partial_fit(new, n_new=2)
    learner = inlay.Learner(backbone="resnet8", settings=QUICK, device="cpu", seed=7)
    learner.fit(inlay.ImageSet.from_arrays(images, labels, origin="X"))
    learner.discover(new, classes=2)
    assert found.classes_.tolist() == [4, 5, 6, 7, 8]
    predicted = learner.predict(new)
    assert found.predict(new).tolist() == [4 + prediction.id for prediction in predicted]
    probabilities = found.predict_proba(new)
    assert probabilities.shape == (80, 5)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(probabilities.max(axis=1), [p.probability for p in predicted], atol=1e-5)


def test_names_stay_names_and_a_first_partial_fit_is_a_fit() -> None:
    images, labels = _arrays("0", "1")
    colour = np.stack([images] * 3, axis=-1)
    words = np.array(["zero", "one"])[labels]
    found = _quick().partial_fit(colour, words, classes=["one", "zero"])
    assert found.classes_.tolist() == ["one", "zero"]
    found.partial_fit(colour[:30], n_new=2)
    assert found.classes_.tolist() == ["one", "zero", "new-1.1", "new-1.2"]
    assert set(found.predict(colour)) <= set(found.classes_)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict_proba(colour), found.predict_proba(colour))


def test_labels_of_new_classes_are_learned_between_discoveries() -> None:
    images, labels = _arrays("4", "5", "6")
    more, its_labels = _arrays("8", "1")
    found = _quick().fit(images, labels).partial_fit(_arrays("2", "3")[0], n_new=2)
    assert found.partial_fit(more, 10 * its_labels).classes_.tolist() == [4, 5, 6, 7, 8, 10, 80]
    assert [record.kind for record in found.learner_.stages] == ["base", "novel", "labelled"]
    assert found.partial_fit(_arrays("0", "7")[0], n_new=2).classes_.tolist() == [4, 5, 6, 7, 8, 10, 80, 81, 82]
    assert found.predict_proba(more).shape == (80, 9)
    assert set(found.predict(more)) <= set(found.classes_.tolist())


def test_new_classes_in_features() -> None:
    samples = np.random.default_rng(0).normal(size=(90, 5)) + 20 * np.repeat(np.eye(3, 5), 30, axis=0)
    labels = np.repeat([0.0, 1.0, 2.0], 30)
    found = InlayClassifier(backbone="resnet8", epochs=10, device="cpu").fit(samples[:60], labels[:60])
    assert found.score(samples[:60], labels[:60]) > 0.9
    assert found.partial_fit(samples[60:], n_new=1).classes_.tolist() == [0, 1, 2]
    assert found.score(samples, labels) > 0.9


def test_it_can_be_searched_over() -> None:
    images, labels = _arrays("0", "1")
    flat = images.reshape(len(images), -1)
    search = GridSearchCV(_quick(), {"epochs": [1, 2]}, cv=2).fit(flat, labels)
    assert search.best_params_["epochs"] in (1, 2)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize(("features", "side", "square"), [(1, 1, 8), (2, 2, 4), (5, 3, 3), (64, 8, 1), (70, 9, 1)])
def test_layout_of_features(features: int, side: int, square: int) -> None:
    rows = np.random.default_rng(features).normal(scale=3, size=(4, features))
    images = _laid_out(rows)
    assert images.shape == (4, side * square, side * square)
    for row, image in zip(rows, images, strict=True):
        for y in range(side * square):
            for x in range(side * square):
                number = (y // square) * side + x // square
                value = row[number] if number < features else 0.0
                share = (min(max(value, -4.0), 4.0) + 4) / 8
                assert abs(int(image[y, x]) - 255 * share) <= 0.5 + 1e-9


@pytest.mark.parametrize(("kind", "last"), [(np.uint8, 255), (np.int8, 127), (np.int64, -3), (np.float32, 2.0)])
def test_the_next_labels_are_larger_whatever_the_type_of_the_known_ones(
    kind: type[np.number[Any]], last: float
) -> None:
    known = np.array([last - 1, last], dtype=kind)
    assert _more_labels(known, ["new-1.1", "new-1.2"]).tolist() == [last + 1, last + 2]


def test_refusals() -> None:
    images, labels = _arrays("0", "1")
    with pytest.raises(NotFittedError, match=r"call fit with labels first\.$"):
        _quick().partial_fit(images, n_new=2)
    with pytest.raises(RefusedInputError, match=r"There is no sample of the class 2; give some, or leave it out\.$"):
        _quick().partial_fit(images, labels, classes=[0, 1, 2])
    with pytest.raises(RefusedInputError, match=r"floats outside 0\.\.1; scale them to 0\.\.1 or pass"):
        _quick().fit(images * 1.0, labels)
    fitted = _quick().fit(images, labels)
    with pytest.raises(RefusedInputError, match=r"The class 1 is known already, .* of new classes alone\.$"):
        fitted.partial_fit(images, np.where(labels == 0, 5, labels))
    assert fitted.classes_.tolist() == [0, 1]
    with pytest.raises(RefusedInputError, match="Finding 99 new classes needs more than 99 images"):
        fitted.partial_fit(images, n_new=99)
    with pytest.raises(RefusedInputError, match=r"shape \[8, 7\], but those of fit had \[8, 8\]"):
        fitted.predict(images[:, :, :7])
    with pytest.raises(ValueError, match="NaN"):
        fitted.predict(np.full((2, 8, 8), np.nan))
    assert issubclass(RefusedInputError, InlayError)


def test_it_is_found_in_the_package() -> None:
    assert inlay.InlayClassifier is InlayClassifier
    with pytest.raises(AttributeError, match="no attribute 'InlayRegressor'"):
        _ = getattr(inlay, "InlayRegressor")  # noqa: B009 - by name, as a typed access would not be accepted


def test_the_number_of_new_classes_is_estimated() -> None:
    images, labels = digits(["0", "1"]).images[:, 0].numpy(), [0] * 40 + [1] * 40
    found = _quick().fit(images, labels).partial_fit(digits(["3", "6"]).images[:, 0].numpy())
    assert len(found.classes_) == len(found.learner_.classes) > 2
    assert found.classes_.tolist() == list(range(len(found.classes_)))
