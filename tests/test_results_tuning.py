import functools

import numpy as np
from benchmarks.results_runs import FIRST, read_runs
from benchmarks.results_tables import TUNING

from inlay.bench.datasets import BENCHMARKS
from inlay.data import ImageSet, Stages
from inlay.settings import preset


@functools.cache
def _images(dataset: str) -> ImageSet:
    names = np.array([f"{number:03d}" for number in range(BENCHMARKS[dataset].classes)])
    return ImageSet.from_arrays(np.zeros((len(names), 8, 8), np.uint8), names)


def _shared(dataset: str, split_seed: int) -> int:
    """The number of novel classes of a random split that are novel in the first split, too."""
    images = _images(dataset)
    base, *novel = BENCHMARKS[dataset].cut(1)
    first, drawn = (
        set(Stages(images, images, base=base, novel=novel, split_seed=seed).class_names(1))
        for seed in (None, split_seed)
    )
    return len(first & drawn)


def test_adm_was_tuned_on_a_split_that_shares_as_many_classes_as_the_page_says() -> None:
    assert (_shared("cifar10", 1), _shared("cifar100", 1)) == (3, 5)


def test_our_own_method_was_tuned_on_the_first_splits_that_share_no_novel_class() -> None:
    ours = [run for run in read_runs(TUNING) if run.facts["method"] == "inlay"]
    # What was run on the first split is the former preset, and one run that the page tells of.
    assert {run.label for run in ours if run.split == FIRST} == {"inlay-before", "w-held"}
    tuned = {(run.dataset, run.split) for run in ours if run.split != FIRST}
    assert tuned == {("cifar10", "seed 383"), ("cifar100", "seed 91")}
    for dataset, seed in (("cifar10", 383), ("cifar100", 91)):
        assert _shared(dataset, seed) == 0
        assert all(_shared(dataset, earlier) for earlier in range(seed))


def test_what_was_adopted_together_was_compared_on_both_splits() -> None:
    adopted = preset("inlay").to_json()
    assert adopted["distillation"]["by_classes"] and adopted["assignment"]["partner_share"] == 0.5
    assert adopted["training"]["learning_rate"] == 0.03
    wanted = {"training.learning_rate": "0.03", "distillation.by_classes": "true", "assignment.partner_share": "0.5"}
    alike = [
        (run.dataset, run.split)
        for run in read_runs(TUNING)
        if run.facts["settings"].items() >= wanted.items() and run.facts["settings"].get("first_view") != "strong"
    ]
    assert {("cifar10", "seed 383"), ("cifar100", "seed 91")} <= set(alike)
