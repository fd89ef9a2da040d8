from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from inlay.data.arrays import Array, Labels, as_images, as_labels
from inlay.errors import InlayError


def pixels(*shape: int) -> npt.NDArray[np.uint8]:
    return np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)


def test_every_layout_becomes_channels_first() -> None:
    grey = pixels(2, 5, 4)
    for array in (grey, grey[:, None], grey[..., None]):
        assert torch.equal(as_images(array, "x"), torch.tensor(grey)[:, None])
    colour = torch.tensor(pixels(2, 3, 5, 4))
    last = colour.permute(0, 2, 3, 1)
    arrays: list[Array] = [colour, last, colour.numpy(), last.numpy()]
    for each in arrays:
        result = as_images(each, "x")
        assert result.is_contiguous()
        assert torch.equal(result, colour)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_floats_are_scaled_and_rounded(dtype: Any) -> None:
    values = np.array([0.0, 0.25, 0.5, 1.0], dtype=dtype).reshape(1, 2, 2)
    # 0.25 x 255 = 63.75; 0.5 x 255 = 127.5, rounded to even.
    assert as_images(values, "x").flatten().tolist() == [0, 64, 128, 255]
    native = torch.tensor(values.astype(np.float32))
    assert as_images(native.bfloat16(), "x").flatten().tolist() == [0, 64, 128, 255]


def test_the_given_array_stays_independent() -> None:
    source = pixels(1, 4, 4)
    images = as_images(source, "x")
    source[:] = 0
    assert images.sum() == sum(range(16))


@pytest.mark.parametrize("value", [-0.01, 1.01, 255.0, float("nan"), float("inf")])
def test_floats_of_other_ranges_are_refused(value: float) -> None:
    with pytest.raises(InlayError, match=r"digits are floats outside 0\.\.1"):
        as_images(np.full((1, 4, 4), value), "digits")


@pytest.mark.parametrize("array", [pixels(1, 4, 4).astype(np.int64), torch.zeros(1, 4, 4, dtype=torch.int32)])
def test_other_types_are_refused(array: Any) -> None:
    with pytest.raises(InlayError, match=r"int\d\d; pass uint8, or floats"):
        as_images(array, "x")


def test_other_shapes_are_refused() -> None:
    for shape in ((4, 4), (2, 5, 4, 2), (2, 4, 4, 4), (1, 2, 3, 4, 5)):
        with pytest.raises(InlayError, match=r"pass \[N, H, W\]"):
            as_images(pixels(*shape), "x")
    with pytest.raises(InlayError, match="either end may be the channels"):
        as_images(pixels(2, 3, 8, 3), "x")
    with pytest.raises(InlayError, match="are a list; pass a numpy array"):
        as_images([[1]], "x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "class_names", "expected", "names"),
    [
        ([7, 3, 3, 10], None, [1, 0, 0, 2], ("3", "7", "10")),
        (np.array([1, 0], dtype=np.uint8), ["cat", "dog"], [1, 0], ("cat", "dog")),
        (torch.tensor([2, 2]), ["a", "b", "c"], [2, 2], ("a", "b", "c")),
        (["10", "2", "10", "1"], None, [2, 1, 2, 0], ("1", "2", "10")),
        (["dog", "ant", "dog"], None, [1, 0, 1], ("ant", "dog")),
        (np.array(["dog", "ant"]), ["dog", "bee", "ant"], [0, 2], ("dog", "bee", "ant")),
        (np.array(["dog", "ant"], dtype=object), None, [1, 0], ("ant", "dog")),
        ([], ["a"], [], ("a",)),
    ],
)
def test_labels(labels: Labels, class_names: list[str] | None, expected: list[int], names: tuple[str, ...]) -> None:
    indices, known = as_labels(labels, class_names, "x")
    assert indices.dtype == torch.int64
    assert indices.tolist() == expected
    assert known == names


@pytest.mark.parametrize(
    ("labels", "class_names", "sentence"),
    [
        ([0.5, 1.0], None, "float64; pass integers or strings"),
        ([True, False], None, "bool; pass integers or strings"),
        ([[0], [1]], None, "one label per image"),
        ([-1, 0], None, "contain -1; number classes from 0"),
        ([0, 2], ["a", "b"], "label 2 of x is beyond the 2 class names"),
        (["c"], ["a", "b"], "label 'c' of x is not among"),
        ([[0], [1, 2]], None, "differ in length; pass one integer or string per image"),
        ([0], "ab", "are one text, 'ab'; pass a list of names"),
        ([0], ["a", "a"], "contain a name twice"),
    ],
)
def test_bad_labels(labels: Any, class_names: Any, sentence: str) -> None:
    with pytest.raises(InlayError, match=sentence):
        as_labels(labels, class_names, "x")
