from pathlib import Path

import numpy as np
import pytest
import torch

from inlay.bench.datasets import BENCHMARKS, benchmark
from inlay.data.augment import VIEWS
from inlay.errors import InlayError


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_cut_has_all_classes_and_as_many_stages_as_it_says(name: str) -> None:
    for steps, counts in benchmark(name).cuts.items():
        assert sum(counts) == benchmark(name).classes
        assert len(counts) == steps + 1


@pytest.mark.parametrize("name", BENCHMARKS)
def test_views_exist(name: str) -> None:
    assert {benchmark(name).base_view, benchmark(name).stage_view} <= VIEWS.keys()


def test_unknown_names_and_cuts_are_refused() -> None:
    with pytest.raises(InlayError, match=r"no data set 'mnist'.*cifar10, cifar100, tinyimagenet"):
        benchmark("mnist")
    with pytest.raises(InlayError, match="cifar10 is not cut into 2 discovery stages; write --steps 1"):
        benchmark("cifar10").cut(2)


@pytest.mark.parametrize("place", BENCHMARKS["cifar100"].places)
def test_each_place_is_found(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir()
    assert benchmark("cifar100").find(tmp_path) == tmp_path / place


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InlayError) as error:
        benchmark("tinyimagenet").find(tmp_path)
    assert str(error.value) == (
        f"tinyimagenet is not in '{tmp_path}'; put it there as one of: tinyimagenet, tinyimagenet.npz, "
        f"tiny-imagenet-200."
    )


def test_classes_come_in_label_order_and_arrays_keep_their_size(digits_as_cifar10: Path) -> None:
    stages = benchmark("cifar10").stages(digits_as_cifar10, 1, None)
    assert stages.base.size == (8, 8)
    assert stages.class_names(0) == ("0", "1", "2", "3", "4")
    assert stages.class_names(1) == ("5", "6", "7", "8", "9")


def test_a_split_seed_shuffles_and_all_together_keeps_the_order(digits_as_cifar10: Path) -> None:
    apart = benchmark("cifar10").stages(digits_as_cifar10, 1, 3)
    together = benchmark("cifar10").stages(digits_as_cifar10, 1, 3, together=True)
    order = apart.class_names(0) + apart.class_names(1)
    assert order != tuple(sorted(order))
    assert together.class_names(0) == order
    assert torch.equal(together.test(0).images, apart.test(1).images)


def test_another_number_of_classes_is_refused(tmp_path: Path) -> None:
    images, labels = np.zeros((4, 8, 8), dtype=np.uint8), np.arange(4)
    np.savez(tmp_path / "cifar10.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    with pytest.raises(InlayError, match=r"cifar10 has 10 classes but .* has 4"):
        benchmark("cifar10").stages(tmp_path, 1, None)
