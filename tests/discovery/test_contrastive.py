import math

import pytest
import torch
from torch import Tensor

from inlay.discovery.contrastive import ContrastiveForm, contrastive


def _views(images: int = 5, size: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(images, size, generator=generator, dtype=torch.float64)
    return first, first + torch.randn(images, size, generator=generator, dtype=torch.float64)


def _unit_rows(rows: Tensor) -> list[list[float]]:
    return [[value / math.sqrt(sum(v * v for v in row)) for value in row] for row in rows.tolist()]


def _dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_standard_form_equals_nt_xent_written_with_loops() -> None:
    first, second = _views()
    views = _unit_rows(first) + _unit_rows(second)
    images, losses = len(first), []
    for anchor in range(2 * images):
        partner = anchor + images if anchor < images else anchor - images
        denominator = sum(
            math.exp(_dot(views[anchor], views[other]) / 0.3) for other in range(2 * images) if other != anchor
        )
        losses.append(-math.log(math.exp(_dot(views[anchor], views[partner]) / 0.3) / denominator))
    assert contrastive(first, second, temperature=0.3).item() == pytest.approx(sum(losses) / len(losses))


def test_literal_form_equals_the_printed_equation() -> None:
    first, second = _views()
    anchors, others = _unit_rows(first), _unit_rows(second)
    total = 0.0
    for i in range(len(anchors)):
        denominator = sum(math.exp(_dot(anchors[i], others[j]) / 0.5) for j in range(len(others)) if j != i)
        total -= math.log(math.exp(_dot(anchors[i], others[i]) / 0.5) / denominator)
    result = contrastive(first, second, temperature=0.5, form="literal")
    assert result.item() == pytest.approx(total / len(anchors))


@pytest.mark.parametrize("form", ["standard", "literal"])
def test_the_length_of_projections_does_not_matter(form: ContrastiveForm) -> None:
    first, second = _views()
    assert contrastive(3 * first, 0.2 * second, form=form).item() == pytest.approx(
        contrastive(first, second, form=form).item()
    )


def test_standard_form_is_symmetric_in_the_views() -> None:
    first, second = _views()
    assert contrastive(first, second).item() == pytest.approx(contrastive(second, first).item())


@pytest.mark.parametrize("form", ["standard", "literal"])
def test_gradients_are_right_and_finite_for_identical_views(form: ContrastiveForm) -> None:
    first, second = (view.requires_grad_() for view in _views(3, 4))
    assert torch.autograd.gradcheck(lambda a, b: contrastive(a, b, form=form), (first, second))
    same = first.detach().clone().requires_grad_()
    contrastive(same, same, form=form).backward()  # type: ignore[no-untyped-call]
    assert same.grad is not None and torch.isfinite(same.grad).all()


def test_bad_input_is_refused() -> None:
    first, second = _views()
    with pytest.raises(ValueError, match="two images"):
        contrastive(first[:1], second[:1])
    with pytest.raises(ValueError, match="both views"):
        contrastive(first, second[:3])
    with pytest.raises(ValueError, match="temperature"):
        contrastive(first, second, temperature=0.0)
    with pytest.raises(ValueError, match="form"):
        contrastive(first, second, form="other")  # type: ignore[arg-type]
