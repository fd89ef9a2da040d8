import torch

from inlay.review.server.stage_view import doubtful, nearest, plane, typical


def test_the_plane_keeps_the_two_directions_of_largest_variance() -> None:
    weights = torch.tensor([9.0, 4.0, 1.0, 0.5], dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    points = torch.randn(200, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * weights
    laid = plane(points @ turn.T + 5)
    assert laid.shape == (200, 2)
    assert laid.abs().max() == 1
    torch.testing.assert_close(laid.amax(dim=0), -laid.amin(dim=0))
    laid = laid - laid.mean(dim=0)
    centred = points - points.mean(dim=0)
    for axis in range(2):
        direction = torch.linalg.svd(centred).Vh[axis]
        along = centred @ direction
        correlation = (along * laid[:, axis]).sum() / (along.norm() * laid[:, axis].norm())
        torch.testing.assert_close(correlation.abs(), torch.ones((), dtype=torch.float64))


def test_the_plane_of_few_or_equal_or_one_dimensional_features_is_finite() -> None:
    assert torch.equal(plane(torch.ones(1, 5)), torch.zeros(1, 2, dtype=torch.float64))
    assert torch.equal(plane(torch.ones(3, 5)), torch.zeros(3, 2, dtype=torch.float64))
    line = plane(torch.tensor([[0.0], [1.0], [4.0]]))
    assert line.shape == (3, 2)
    assert torch.equal(line[:, 1], torch.zeros(3, dtype=torch.float64))


def test_typical_images_are_those_nearest_to_the_mean() -> None:
    features = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    centre = [sum(row[d] for row in features.tolist()) / 30 for d in range(4)]
    away = [sum((row[d] - centre[d]) ** 2 for d in range(4)) for row in features.tolist()]
    assert typical(features, 5) == sorted(range(30), key=lambda row: away[row])[:5]
    assert len(typical(features, 99)) == 30


def test_doubtful_images_have_the_smallest_lead() -> None:
    scores = torch.tensor([[5.0, 1.0, 0.0], [2.0, 1.9, 0.0], [0.0, 3.0, 1.0], [4.0, 0.0, 3.5]])
    assert doubtful(scores, 0, 3) == [2, 1, 3]


def test_the_nearest_class_is_one_of_those_allowed() -> None:
    means = torch.tensor([[0.0, 0.0], [9.0, 0.0], [1.0, 0.0], [8.0, 0.0]])
    assert nearest(means, 3, [0, 1, 2]) == 1
    assert nearest(means, 3, [0, 2]) == 2
    assert nearest(means, 3, []) is None
