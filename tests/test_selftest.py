import torch

from inlay.described import Described
from inlay.pipeline import Workshop
from inlay.selftest import classes_to_hide, held_out_images, hide_and_find
from tiny_digits import digits
from tiny_stage import quick


def test_a_share_of_each_class_is_held_out() -> None:
    labels = torch.tensor([0] * 10 + [1] * 25 + [2] * 3 + [3] * 2)
    chosen = held_out_images(labels, 0.4, 0)
    assert [int(chosen[labels == label].sum()) for label in range(4)] == [4, 10, 1, 0]
    assert torch.equal(chosen, held_out_images(labels, 0.4, 0))
    assert not torch.equal(chosen, held_out_images(labels, 0.4, 1))
    assert not held_out_images(labels, 0.0, 0).any()


def test_a_third_of_the_classes_is_hidden_and_two_are_left() -> None:
    assert classes_to_hide(["a", "b", "c"], 0) == ()
    for count in (4, 5, 6, 9, 30):
        names = [f"class {index}" for index in range(count)]
        hidden = classes_to_hide(names, 7)
        assert len(hidden) == max(2, round(count / 3))
        assert count - len(hidden) >= 2
        assert [name for name in names if name in hidden] == list(hidden)
    assert len({classes_to_hide(names, seed) for seed in range(5)}) > 1


def test_hidden_classes_are_found_again() -> None:
    images = digits(["0", "1", "2", "4", "6"], 0, 120)
    assert images.labels is not None
    settings = quick(changes={"base.training.epochs": 12, "base.training.learning_rate": 0.05, "training.epochs": 4})
    held_out = held_out_images(images.labels, 0.3, 0)
    trial = hide_and_find(Described(images), held_out, ["0", "6"], "resnet8", settings, 0, Workshop(), 0.1)
    assert trial.hidden == ("0", "6")
    assert trial.estimate >= 1
    assert trial.auroc > 0.8
    assert 0.5 < trial.spread < 2
    assert trial.new_found > 0.5
    assert trial.known_error < 0.4
    assert abs(trial.estimated_drop - trial.true_drop) < 0.3
    repeated = hide_and_find(Described(images), held_out, ["0", "6"], "resnet8", settings, 0, Workshop(), 0.1)
    assert repeated == trial
