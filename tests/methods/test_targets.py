import copy

import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from inlay.backbones.twin import ResidualStudentHead
from inlay.discovery.projection import StudentHead
from inlay.methods.model import StageModel
from inlay.methods.targets import ClusterTargets, refresh_targets, residual_student_head, student_head
from inlay.methods.task import StageTask
from tiny_stage import images_of, quick, tiny_model, tiny_task


def targets_of(model: StageModel) -> Tensor:
    targets = model.others["targets"]
    assert isinstance(targets, ClusterTargets)
    return targets.rows


def sharpened(task: StageTask, model: StageModel) -> Tensor:
    """Targets of all images, made with loops of the assignments in eval mode, without augmentation."""
    assert model.novel_head is not None
    trunk = copy.deepcopy(model.trunk).eval()
    with torch.no_grad():
        q = model.novel_head(trunk(task.prepare(images_of(task)))).tolist()
    classes = range(task.classes)
    sums = [sum(row[k] for row in q) for k in classes]
    weights = [[row[k] ** 2 / sums[k] for k in classes] for row in q]
    return torch.tensor([[value / sum(row) for value in row] for row in weights])


@pytest.mark.parametrize(
    ("epochs", "refresh", "due"),
    [(8, 0.25, [0, 2, 4, 6]), (8, 0.4, [0, 3, 6]), (6, 1.0, [0]), (4, 0.05, [0, 1, 2, 3]), (3, 0.0, [0, 1, 2])],
)
def test_targets_are_made_anew_in_the_due_epochs_alone(epochs: int, refresh: float, due: list[int]) -> None:
    task = tiny_task(quick("dtc", {"training.epochs": epochs, "clustering.refresh": refresh}), count=8)
    model = tiny_model(task)
    made = []
    for epoch in range(epochs):
        targets_of(model).fill_(-1)
        refresh_targets(task, model, epoch)
        if not torch.equal(targets_of(model), torch.full((16, 2), -1.0)):
            made.append(epoch)
    assert made == due


@pytest.mark.parametrize("name", ["dtc", "restune"])
def test_targets_are_the_sharpened_assignments_of_all_images(name: str) -> None:
    task = tiny_task(quick(name))
    model = tiny_model(task)
    rows = targets_of(model)
    torch.testing.assert_close(rows, torch.full((len(task.feed), 2), 0.5))
    before = {name: tensor.clone() for name, tensor in model.trunk.state_dict().items()}
    refresh_targets(task, model, 0)
    # In place, as a recorded step has seen where they lie.
    assert targets_of(model) is rows
    torch.testing.assert_close(rows, sharpened(task, model), rtol=1e-4, atol=1e-5)
    assert float(rows.max() - rows.min()) > 0.1 and not rows.requires_grad
    assert all(torch.equal(before[name], tensor) for name, tensor in model.trunk.state_dict().items())
    assert all(module.training for module in model.trunk.modules())


def test_targets_follow_the_network() -> None:
    task = tiny_task(quick("dtc"))
    model = tiny_model(task)
    refresh_targets(task, model, 0)
    first = targets_of(model).clone()
    with torch.no_grad():
        for parameter in model.trunk.parameters():
            parameter.mul_(1.1)
    refresh_targets(task, model, 0)
    assert not torch.allclose(targets_of(model), first, atol=1e-4)
    torch.testing.assert_close(targets_of(model), sharpened(task, model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_head_starts_in_the_principal_directions_of_the_frozen_features(classes: int) -> None:
    task = tiny_task(quick("dtc"), classes=classes)
    head = student_head(task)
    assert all(parameter.requires_grad for parameter in head.parameters())
    with torch.no_grad():
        points = head.bottleneck(task.frozen_features)
    expected = torch.from_numpy(PCA(classes).fit_transform(task.frozen_features.double().numpy())).float()
    for found, wanted in zip(points.T, expected.T, strict=True):
        sign = torch.sign(found @ wanted)
        torch.testing.assert_close(found, sign * wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_centres_of_a_head_start_at_the_means_of_what_is_nearest_to_them(classes: int) -> None:
    task = tiny_task(quick("dtc"), classes=classes)
    head = student_head(task)
    with torch.no_grad():
        points, assignments = head.bottleneck(task.frozen_features), head(task.frozen_features)
    distances = [[torch.dist(point, centre).item() for centre in head.centres] for point in points]
    nearest = [row.index(min(row)) for row in distances]
    assert nearest == assignments.argmax(dim=1).tolist() and set(nearest) == set(range(classes))
    for label, centre in enumerate(head.centres):
        members = torch.stack([point for point, chosen in zip(points, nearest, strict=True) if chosen == label])
        torch.testing.assert_close(centre.detach(), members.mean(dim=0), rtol=1e-4, atol=1e-4)


def test_the_head_of_a_twin_network_starts_as_the_same_head_of_the_sum() -> None:
    task = tiny_task(quick("restune"))
    head, plain = residual_student_head(task), student_head(task)
    assert isinstance(head, ResidualStudentHead) and isinstance(head.student, StudentHead)
    features = task.frozen_features
    with torch.no_grad():
        halves = torch.cat([0.25 * features, 0.75 * features], dim=1)
        torch.testing.assert_close(head(halves), plain(features))
