from collections.abc import Sequence

import numpy as np
import pytest
import torch
from benchmarks import plain
from PIL import Image
from torch import Tensor, nn

from inlay.backbones import build
from inlay.errors import InlayError

CPU = torch.device("cpu")
SIDE = 8


def _as_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


def _flipped(image: Image.Image) -> Tensor:
    return _as_tensor(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT))


def _pixels(count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(1).integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)


def _images(count: int, views: Sequence[plain.View] = (_as_tensor, _flipped)) -> plain.PlainImages:
    return plain.PlainImages(_pixels(count), [index % plain.OLD_CLASSES for index in range(count)], views)


class _Counting(nn.Module):
    """A loss that counts the images of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.batches: list[int] = []

    def forward(self, views: Sequence[Tensor], labels: Tensor) -> Tensor:
        self.batches.append(len(labels))
        return self.weight * views[0].mean()


def test_an_image_gives_its_views_and_its_label() -> None:
    images = _images(7)
    assert len(images) == 7
    views, label = images[6]
    expected = torch.from_numpy(_pixels(7)[6]).permute(2, 0, 1) / 255
    assert label == 1
    assert torch.equal(views[0], expected)
    assert torch.equal(views[1], expected.flip(2))


def test_only_steady_steps_count_and_each_image_counts_once() -> None:
    loss = _Counting()
    found = plain.best_of_workers(loss, _images(12), 4, (0,), CPU, seconds=0.05)
    assert set(loss.batches) == {4}
    assert found["images"] == 4 * (len(loss.batches) - plain.FURTHER_WARM_UP_BATCHES)
    assert found["seconds"] >= 0.05
    assert 0 < found["waiting_s"] < found["seconds"]
    assert found["images_per_s"] == found["images"] / found["seconds"]
    assert found["workers"] == 0 and found["by_workers"] == {"0": found["images_per_s"]}


def test_what_workers_made_ahead_is_used_up_in_the_warm_up() -> None:
    loss = _Counting()
    found = plain.best_of_workers(loss, _images(12), 4, (1,), CPU, seconds=0.0)
    assert found["images"] == 4
    assert len(loss.batches) == plain.BATCHES_AHEAD_PER_WORKER + plain.FURTHER_WARM_UP_BATCHES + 1


def test_the_fastest_number_of_workers_is_taken() -> None:
    found = plain.best_of_workers(_Counting(), _images(12), 4, (0, 1, 2), CPU, seconds=0.05)
    assert found["by_workers"].keys() == {"0", "1", "2"}
    assert found["by_workers"][str(found["workers"])] == max(found["by_workers"].values()) == found["images_per_s"]


def test_a_number_of_workers_that_fails_is_left_out() -> None:
    def broken_without_workers(image: Image.Image) -> Tensor:
        if torch.utils.data.get_worker_info() is None:
            raise RuntimeError("no shared memory")
        return _as_tensor(image)

    images = _images(12, [broken_without_workers])
    found = plain.best_of_workers(_Counting(), images, 4, (0, 1), CPU, seconds=0.0)
    assert found["workers"] == 1
    assert found["by_workers"]["0"] == "no shared memory"
    with pytest.raises(InlayError, match="no shared memory"):
        plain.best_of_workers(_Counting(), images, 4, (0,), CPU, seconds=0.0)


def test_fewer_images_than_a_batch_are_refused() -> None:
    with pytest.raises(InlayError, match="fewer images"):
        plain.best_of_workers(_Counting(), _images(3), 4, (0,), CPU, seconds=0.0)


def test_the_base_stage_is_cross_entropy_of_the_first_view() -> None:
    torch.manual_seed(0)
    loss = plain.BaseLoss(build("resnet8"), 64)
    first, second = torch.randn(2, 6, 3, SIDE, SIDE)
    labels = torch.arange(6) % plain.OLD_CLASSES
    scores = loss.head(loss.network(first)).log_softmax(dim=1)
    expected = -sum(scores[index, label] for index, label in enumerate(labels.tolist())) / 6
    assert torch.allclose(loss([first, second], labels), torch.as_tensor(expected), atol=1e-6)


def test_every_part_but_the_teacher_learns_in_a_novel_stage() -> None:
    torch.manual_seed(0)
    loss = plain.loss_of("adm", "resnet8", SIDE, CPU)
    before = {name: tensor.clone() for name, tensor in loss.state_dict().items()}
    plain.best_of_workers(loss, _images(16), 8, (0,), CPU, seconds=0.0)
    trained = {name for name, parameter in loss.named_parameters() if parameter.requires_grad}
    moved = {name for name, tensor in loss.state_dict().items() if not torch.equal(tensor, before[name])}
    assert trained <= moved
    assert {name.split(".")[0] for name in trained} == {"hybrid", "novel_head", "joint_head", "projector"}
    assert not any(name.startswith(("teacher", "old_")) for name in moved)


def test_classifier_losses_of_a_novel_stage_stay_off_the_backbone() -> None:
    torch.manual_seed(0)
    loss = plain.loss_of("adm", "resnet8", SIDE, CPU)
    assert isinstance(loss, plain.AdmLoss)
    views, labels = list(torch.randn(2, 8, 3, SIDE, SIDE)), torch.zeros(8, dtype=torch.long)

    def gradient() -> Tensor:
        loss.zero_grad()
        loss(views, labels).backward()
        parts = (parameter.grad for parameter in loss.hybrid.parameters() if parameter.grad is not None)
        return torch.cat([part.flatten() for part in parts])

    first = gradient()
    with torch.no_grad():
        loss.novel_head.weight.mul_(10)
        loss.joint_head.weight.mul_(10)
    assert torch.equal(gradient(), first)


def test_torchvision_gives_views_or_says_why_not() -> None:
    image = Image.fromarray(_pixels(1)[0])
    try:
        weak, strong = plain.torchvision_views("adm", SIDE)
    except InlayError as error:
        assert "torchvision" in str(error)
        return
    assert len(plain.torchvision_views("base", SIDE)) == 1
    assert weak(image).shape == strong(image).shape == (3, SIDE, SIDE)
