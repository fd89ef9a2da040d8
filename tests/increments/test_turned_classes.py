import copy
from dataclasses import replace

import pytest
import torch

from increment_cases import course, quick
from inlay.engine.batch import Batch
from inlay.errors import InlayError
from inlay.increments.course import stage_task
from inlay.increments.increment import Increment
from inlay.increments.systems import necil
from inlay.increments.turned_classes import TurnedWork
from inlay.knowledge import InputForm


@pytest.fixture(scope="module")
def task() -> Increment:
    return stage_task(quick(necil.FAIR), course(), None, 0, torch.device("cpu"))


@pytest.fixture(scope="module")
def work(task: Increment) -> TurnedWork:
    return TurnedWork(task, task.opened())


def _batch(task: Increment) -> Batch:
    rows = torch.tensor([0, 5, 30, 61])
    return Batch(task.pixels[rows], task.pixels[rows], rows, rows, torch.tensor(3))


def test_the_loss_is_that_of_each_turn_among_all_turned_classes(task: Increment, work: TurnedWork) -> None:
    batch = _batch(task)
    single = copy.deepcopy(work).eval().double()
    total = 0.0
    for image, label in zip(batch.images, task.labels[batch.rows].tolist(), strict=True):
        picture = task.form.prepare(image[None])[0, 0].double()
        for turn in range(4):
            scores = single.head(single.network(picture[None, None]))[0] / 0.1
            total += (scores.logsumexp(0) - scores[4 * label + turn]).item() / 16
            # A quarter turn counter-clockwise: the last column becomes the first row.
            picture = torch.stack([picture[:, -1 - column] for column in range(len(picture))])
    found = copy.deepcopy(work).eval()(batch)["turned classes"]
    assert found.item() == pytest.approx(total, rel=1e-4)
    assert task.labels.unique().tolist() == [0, 1, 2] and work.head.out_features == 12  # type: ignore[no-untyped-call]


def test_the_head_that_goes_on_scores_upright_images(work: TurnedWork) -> None:
    features = torch.randn(5, work.head.in_features, generator=torch.Generator().manual_seed(1))
    head = work.upright_head()
    torch.testing.assert_close(head(features), work.head(features)[:, [0, 4, 8]])
    with torch.no_grad():
        head.weight.zero_()
    assert work.head.weight.count_nonzero() == work.head.weight.numel()


def test_images_that_are_not_square_are_refused(task: Increment) -> None:
    wide = replace(task, form=InputForm((8, 10), 1, (0.3,), (0.4,)))
    with pytest.raises(InlayError, match="must be square, not 10×8"):
        TurnedWork(wide, task.opened())
