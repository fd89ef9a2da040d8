import math

import pytest
import torch
from torch import Tensor

from inlay.discovery.information import mutual_information_loss


def probabilities(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).softmax(dim=1)


def slow_loss(first: Tensor, second: Tensor) -> float:
    images, clusters = first.shape
    joint = [[0.0] * clusters for _ in range(clusters)]
    for image in range(images):
        for row in range(clusters):
            for column in range(clusters):
                one = float(first[image, row] * second[image, column])
                other = float(first[image, column] * second[image, row])
                joint[row][column] += (one + other) / 2 / images
    loss = 0.0
    for row in range(clusters):
        for column in range(clusters):
            p_row = sum(joint[row])
            p_column = sum(joint[k][column] for k in range(clusters))
            p = joint[row][column]
            loss += p * (math.log(p_row) + math.log(p_column) - math.log(p))
    return loss


def test_equals_the_loops() -> None:
    first, second = probabilities(7, 4), probabilities(7, 4, seed=1)
    assert mutual_information_loss(first, second).item() == pytest.approx(slow_loss(first, second), abs=1e-12)


def test_minimum_is_balanced_certain_agreement() -> None:
    certain = torch.eye(5, dtype=torch.float64).repeat(3, 1)
    assert mutual_information_loss(certain, certain).item() == pytest.approx(-math.log(5), abs=1e-12)
    unbalanced = torch.cat([certain, certain[:1].expand(4, 5)])
    assert mutual_information_loss(unbalanced, unbalanced) > -math.log(5) + 1e-3


def test_independent_views_have_no_information() -> None:
    pairs = [(row, column) for row in range(3) for column in range(3)]
    first = torch.eye(3, dtype=torch.float64)[[row for row, _ in pairs]]
    second = torch.eye(3, dtype=torch.float64)[[column for _, column in pairs]]
    assert mutual_information_loss(first, second).item() == pytest.approx(0, abs=1e-12)
    constant = probabilities(1, 4).expand(6, 4)
    assert mutual_information_loss(constant, constant).item() == pytest.approx(0, abs=1e-12)


def test_views_may_change_places() -> None:
    first, second = probabilities(6, 3), probabilities(6, 3, seed=1)
    torch.testing.assert_close(mutual_information_loss(first, second), mutual_information_loss(second, first))


def test_gradient() -> None:
    logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: mutual_information_loss(*x.softmax(dim=2)), logits)


def test_finite_with_probabilities_of_zero() -> None:
    collapsed = torch.tensor([[1.0, 0.0, 0.0]]).repeat(4, 1).requires_grad_()
    loss = mutual_information_loss(collapsed, collapsed)
    (gradient,) = torch.autograd.grad(loss, collapsed)
    assert loss.item() == 0
    assert gradient.isfinite().all()


def test_half_precision_is_raised() -> None:
    views = probabilities(8, 3).to(torch.bfloat16)
    assert mutual_information_loss(views, views).dtype == torch.float32


@pytest.mark.parametrize(("first", "second"), [((4, 3), (3, 3)), ((4, 3), (4, 2)), ((4,), (4,)), ((0, 3), (0, 3))])
def test_rejects_other_shapes(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"both views must be \[B, K\]"):
        mutual_information_loss(torch.ones(first), torch.ones(second))
