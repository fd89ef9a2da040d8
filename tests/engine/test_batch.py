from dataclasses import fields

import torch

from inlay.engine.batch import Batch

NAMES = [field.name for field in fields(Batch)]


def _batch(value: int, *, partners: bool = True, other_rows: bool = True) -> Batch:
    images = torch.full((2, 1, 3, 3), value, dtype=torch.uint8)
    indices = torch.arange(value, value + 4)
    return Batch(
        images,
        images + 1 if partners else images,
        indices[:2] if other_rows else indices,
        indices,
        torch.tensor(value),
    )


def _same(first: Batch, second: Batch) -> bool:
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in NAMES)


def test_a_copy_has_the_same_contents_in_tensors_of_its_own() -> None:
    batch = _batch(3)
    copy = batch.copied()
    assert _same(copy, batch)
    for name in NAMES:
        getattr(copy, name).zero_()
    assert _same(batch, _batch(3))


def test_tensors_that_are_one_stay_one_in_a_copy() -> None:
    copy = _batch(3, partners=False, other_rows=False).copied()
    assert copy.partners is copy.images and copy.rows is copy.indices
    apart = _batch(3).copied()
    assert apart.partners is not apart.images and apart.rows is not apart.indices


def test_filling_takes_over_the_contents_in_place() -> None:
    for whole in (True, False):
        batch = _batch(3, partners=whole, other_rows=whole)
        places = [getattr(batch, name).data_ptr() for name in NAMES]
        batch.fill(_batch(7, partners=whole, other_rows=whole))
        assert _same(batch, _batch(7, partners=whole, other_rows=whole))
        assert [getattr(batch, name).data_ptr() for name in NAMES] == places


def test_filling_leaves_the_other_batch_alone() -> None:
    batch, other = _batch(3), _batch(7)
    batch.fill(other)
    batch.images.zero_()
    batch.key.zero_()
    assert _same(other, _batch(7))
