import torch

from inlay.described import Described
from inlay.discovery.class_graph import count_by_graph
from inlay.discovery.statistics import class_statistics
from inlay.engine.randomness import generator
from inlay.pipeline import Workshop, learn_base
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
    assert trial.sorted_estimate is not None and trial.sorted_estimate >= 1
    assert trial.sorted_spread is not None and 0.5 < trial.sorted_spread < 2
    repeated = hide_and_find(Described(images), held_out, ["0", "6"], "resnet8", settings, 0, Workshop(), 0.1)
    assert repeated == trial


def test_a_network_that_stays_as_it_is_counts_what_was_hidden_alone() -> None:
    images = digits(["0", "1", "2", "4", "6"], 0, 120)
    assert images.labels is not None
    as_it_is = {"base.training.epochs": 0, "training.epochs": 0, "branch.gate": "frozen", "classifier.drift": False}
    settings = quick(changes=as_it_is)
    held_out, labels = held_out_images(images.labels, 0.3, 0), images.labels
    whole = learn_base(images, "resnet8", settings, 0, Workshop())
    # Far apart, so that what is counted does not hang on the network.
    features = 20 * torch.eye(whole.statistics.mean.shape[1])[labels] + whole.features(images)
    hidden = ["0", "6"]
    trial = hide_and_find(Described(images, features), held_out, hidden, "resnet8", settings, 0, Workshop(), 0.1)
    visible = [name for name in images.class_names if name not in hidden]
    is_hidden = torch.tensor([name in hidden for name in images.class_names])[labels]
    known = Described(images, features).select(~is_hidden & ~held_out).of_classes(visible)
    statistics = class_statistics(known.by(whole), known.labels, len(visible), settings.replay.statistics)
    alone = count_by_graph(features[is_hidden & ~held_out], statistics, generator(0, "class count"))
    assert trial.estimate == alone.estimate == 2
    assert trial.sorted_estimate is None and trial.after_sorting == trial
