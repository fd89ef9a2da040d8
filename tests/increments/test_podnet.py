import math

import pytest
import torch
from torch import Tensor, nn

from increment_cases import course, quick, standings
from inlay.errors import InlayError
from inlay.increments.course import stage_task
from inlay.increments.scores import score_stage
from inlay.increments.systems import catalogue, podnet
from inlay.increments.work import IncrementWork
from proxy_stages import GROUPS, NEW, OLD, Watch, batch_of, exact_stage, moved


def _outputs(network: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Maps of the groups, then the features, read by hooks."""
    found: list[Tensor] = []
    hooks = [
        network.get_submodule(name).register_forward_hook(lambda module, args, output: found.append(output))
        for name in GROUPS
    ]
    with torch.no_grad():
        features: Tensor = network(inputs)
    for hook in hooks:
        hook.remove()
    return [*found, features]


def _unit(values: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values]


def _pooled(image: Tensor) -> list[float]:
    squares = (image * image).tolist()
    rows = [sum(row) for channel in squares for row in channel]
    columns = [sum(column) for channel in squares for column in zip(*channel, strict=True)]
    return _unit(rows + columns)


def _nca(scores: Tensor, label: int) -> float:
    others = [max(scores.tolist()) if place == label else value for place, value in enumerate(scores.tolist())]
    return math.log(sum(math.exp(value) for value in others)) - float(scores[label])


def _moved_work() -> IncrementWork:
    watch = Watch(train=False)
    podnet.PUBLISHED.learn(exact_stage(podnet.PUBLISHED), watch)
    work = watch.works["the losses"]
    moved(work.classifier.network, 2)
    work.eval()
    return work


def test_losses_of_a_later_stage_against_loops() -> None:
    stage, work = exact_stage(podnet.PUBLISHED), _moved_work()
    batch = batch_of(stage)
    inputs, labels = stage.form.prepare(batch.images), stage.labels[batch.rows].tolist()
    *new_maps, new = _outputs(work.classifier.network, inputs)
    *old_maps, old = _outputs(stage.start.network, inputs)
    count = len(labels)
    with torch.no_grad():
        scores, found = work.classifier(inputs), work(batch)
    assert found["nca"].item() == pytest.approx(sum(map(_nca, scores, labels)) / count, rel=1e-9)
    cosines = [
        sum(map(math.prod, zip(_unit(a.tolist()), _unit(b.tolist()), strict=True)))
        for a, b in zip(new, old, strict=True)
    ]
    assert found["flat"].item() == pytest.approx(1 - sum(cosines) / count, rel=1e-9)
    distances = [
        math.dist(_pooled(new_image), _pooled(old_image))
        for new_map, old_map in zip(new_maps, old_maps, strict=True)
        for new_image, old_image in zip(new_map, old_map, strict=True)
    ]
    assert len(distances) == count * len(GROUPS)
    assert found["spatial"].item() == pytest.approx(sum(distances) / len(distances), rel=1e-9)


def test_distillation_weighs_more_the_more_there_is_to_lose() -> None:
    growth = math.sqrt((OLD + NEW) / NEW)
    assert _moved_work().weights(0.5) == pytest.approx({"nca": 1.0, "flat": growth, "spatial": 3 * growth})


def test_the_base_stage_learns_classes_alone_from_random_proxies() -> None:
    watch, system = Watch(train=False), quick(podnet.PUBLISHED, tuning__epochs=1)
    learned = system.learn(stage_task(system, course(), None, 0, torch.device("cpu")), watch)
    assert list(watch.works) == ["the losses"]
    assert watch.works["the losses"].weights(0) == {"nca": 1.0}
    assert {name: tuple(value.shape) for name, value in learned.classifier.head.named_parameters()} == {
        "old": (0, 10, 64),
        "novel": (3, 10, 64),
        "scale": (),
    }


def test_its_own_network_goes_through_a_course_of_one_channel() -> None:
    own = {"backbone": podnet.PUBLISHED.recipe.backbone, "view": podnet.PUBLISHED.recipe.view}
    images = course(cut=(3, 2), images=12)
    short = {"base__epochs": 1, "stage__epochs": 1, "tuning__epochs": 1, "branch__gate": "amm"}
    found = standings(quick(podnet.PUBLISHED, **own, **short), images)
    assert found[-1].merge_difference is not None and found[-1].merge_difference < 1e-4
    assert found[-1].classifier.head(torch.zeros(1, 64)).shape == (1, 5)


def test_old_and_new_digits_are_told_apart() -> None:
    longer = {"base__epochs": 8, "stage__epochs": 6, "tuning__batch": 10, "memory__per_class": 10}
    images = course(cut=(3, 2), images=30)
    found = standings(quick(podnet.FAIR, **longer), images)
    scores = score_stage(images, found[-1])
    # By chance it would be a fifth; until the head is tuned, hardly any old digit is recognised.
    assert scores.cnn > 0.5
    assert min(scores.groups) > 0.4


def test_a_network_without_groups_is_refused_before_it_is_trained() -> None:
    system, watch = quick(podnet.FAIR, backbone="efficientnet-lite0"), Watch()
    with pytest.raises(InlayError, match="layer1"):
        system.learn(stage_task(system, course(), None, 0, torch.device("cpu")), watch)
    assert not watch.works


def test_both_tables_have_it() -> None:
    assert catalogue.system("podnet", "A") is podnet.PUBLISHED
    assert catalogue.system("podnet", "B") is podnet.FAIR
