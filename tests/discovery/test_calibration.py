import math

import pytest
import torch
from torch import Tensor

from inlay.discovery.calibration import HeadScale, calibrated_concat, measure_scale
from inlay.discovery.student import student_assignments

_OLD, _NEW, _IMAGES = 4, 3, 60


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _head_logits(classes: int, known: float, seed: int) -> tuple[Tensor, Tensor]:
    """Logits around 3 with the score of each image's own class raised by `known`, and those classes."""
    labels = torch.arange(_IMAGES) % classes
    raised = known * torch.nn.functional.one_hot(labels, classes)
    return 3 + 0.4 * _normal(_IMAGES, classes, seed=seed).clamp(-2, 2) + raised, labels


def _accuracy(scores: Tensor, labels: Tensor) -> float:
    return (scores.argmax(dim=1) == labels).double().mean().item()


def _slow_scale(logits: Tensor) -> tuple[float, float]:
    largest = [max(row) for row in logits.tolist()]
    mean = sum(largest) / len(largest)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in largest) / len(largest))


def test_scale_and_scores_equal_the_loops() -> None:
    old, new = _normal(9, 4, seed=0), 5 + 3 * _normal(9, 2, seed=1)
    old_scale, new_scale = measure_scale(old), measure_scale(new)
    rows = []
    for old_row, new_row in zip(old.tolist(), new.tolist(), strict=True):
        row = []
        for scores, logits in ((old_row, old), (new_row, new)):
            offset, scale = _slow_scale(logits)
            row += [(value - offset) / scale for value in scores]
        rows.append(row)
    assert (old_scale.offset.item(), old_scale.scale.item()) == pytest.approx(_slow_scale(old))
    expected = torch.tensor(rows, dtype=torch.float64)
    torch.testing.assert_close(calibrated_concat(old, new, old_scale, new_scale), expected)


def test_scale_computed_by_hand() -> None:
    scale = measure_scale(torch.tensor([[1.0, -9.0], [0.0, 5.0]]))
    assert (scale.offset.item(), scale.scale.item()) == (3.0, 2.0)
    joined = calibrated_concat(
        torch.tensor([[7.0, 1.0]]), torch.tensor([[0.5]]), scale, HeadScale(torch.tensor(0.25), torch.tensor(0.5))
    )
    torch.testing.assert_close(joined, torch.tensor([[2.0, -1.0, 0.5]]))


def test_each_heads_largest_score_becomes_standard_where_it_was_measured() -> None:
    old, new = 40 * _normal(30, 4, seed=2), 0.01 * _normal(30, 3, seed=3) - 7
    joined = calibrated_concat(old, new, measure_scale(old), measure_scale(new))
    for part in (joined[:, :4], joined[:, 4:]):
        assert _slow_scale(part) == pytest.approx((0.0, 1.0), abs=1e-9)


def test_assignments_beside_logits_above_one_win_only_after_calibration() -> None:
    old_known, old_labels = _head_logits(_OLD, 8.0, seed=4)
    old_on_novel, _ = _head_logits(_OLD, 2.0, seed=5)
    assert (old_known > 1).all() and (old_on_novel > 1).all()
    centres = 6 * torch.eye(_NEW, dtype=torch.float64)
    novel_labels = torch.arange(_IMAGES) % _NEW
    q_novel = student_assignments(centres[novel_labels] + 0.3 * _normal(_IMAGES, _NEW, seed=6), centres)
    q_old = student_assignments(2 + 0.3 * _normal(_IMAGES, _NEW, seed=7), centres)
    assert _accuracy(q_novel, novel_labels) == 1

    raw = torch.cat([torch.cat([old_known, q_old], dim=1), torch.cat([old_on_novel, q_novel], dim=1)])
    assert (raw.argmax(dim=1) < _OLD).all()

    scales = measure_scale(old_known), measure_scale(q_novel)
    assert _accuracy(calibrated_concat(old_on_novel, q_novel, *scales), _OLD + novel_labels) == 1
    assert _accuracy(calibrated_concat(old_known, q_old, *scales), old_labels) == 1


@pytest.mark.parametrize("constant", [-50.0, 50.0])
def test_a_constant_on_the_novel_head_changes_the_raw_joint_prediction_alone(constant: float) -> None:
    old, _ = _head_logits(_OLD, 2.0, seed=8)
    new, labels = _head_logits(_NEW, 2.0, seed=9)
    moved = new + constant
    before, after = (torch.cat([old, scores], dim=1).argmax(dim=1) for scores in (new, moved))
    assert not torch.equal(before, after)
    assert _accuracy(moved, labels) == _accuracy(new, labels) > 0.5

    calibrated, calibrated_moved = (
        calibrated_concat(old, scores, measure_scale(old), measure_scale(scores)) for scores in (new, moved)
    )
    torch.testing.assert_close(calibrated_moved, calibrated)
    assert torch.equal(calibrated_moved.argmax(dim=1), calibrated.argmax(dim=1))
    chosen_old = calibrated.argmax(dim=1) < _OLD
    assert chosen_old.any() and not chosen_old.all()


def test_a_factor_on_a_head_changes_nothing() -> None:
    old, new = _normal(8, 4, seed=10), _normal(8, 3, seed=11)
    expected = calibrated_concat(old, new, measure_scale(old), measure_scale(new))
    found = calibrated_concat(old, 100 * new, measure_scale(old), measure_scale(100 * new))
    torch.testing.assert_close(found, expected)


def test_a_largest_score_that_never_varies_gets_the_floor() -> None:
    constant = torch.full((5, 3), 2.0)
    assert measure_scale(constant, floor=0.25).scale.item() == 0.25
    assert measure_scale(torch.tensor([[1.0, 4.0]])).scale.item() == 1e-6
    assert calibrated_concat(constant, constant, measure_scale(constant), measure_scale(constant)).isfinite().all()


def test_finite_for_extreme_scores_with_finite_gradients() -> None:
    old = torch.tensor([[1e30, -1e30], [-1e30, 3e30]], requires_grad=True)
    new = torch.tensor([[1e-30], [-1e-30]], requires_grad=True)
    joined = calibrated_concat(old, new, measure_scale(old), measure_scale(new))
    gradients = torch.autograd.grad(joined.sum(), (old, new))
    assert joined.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_half_precision_is_raised_and_float32_kept() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        scores = _normal(6, 3, seed=12).to(dtype)
        assert calibrated_concat(scores, scores, measure_scale(scores), measure_scale(scores)).dtype == torch.float32


def test_scoring_is_traced_whole() -> None:
    def joint(old: Tensor, new: Tensor) -> Tensor:
        return calibrated_concat(old, new, measure_scale(old), measure_scale(new))

    traced = torch.compile(joint, fullgraph=True, dynamic=False, backend="aot_eager")
    old, new = _normal(6, 4, seed=13), _normal(6, 2, seed=14)
    torch.testing.assert_close(traced(old, new), joint(old, new))


def test_bad_input_is_refused() -> None:
    for shape in [(3,), (0, 3), (3, 0)]:
        with pytest.raises(ValueError, match=r"logits must be \[N, C\]"):
            measure_scale(torch.ones(shape))
    with pytest.raises(ValueError, match="floor"):
        measure_scale(torch.ones(2, 2), floor=0.0)
    scale = measure_scale(torch.ones(2, 2))
    for old, new in [((4, 3), (3, 3)), ((4,), (4, 2)), ((4, 2), (4,))]:
        with pytest.raises(ValueError, match=r"\[B, O\] and \[B, K\]"):
            calibrated_concat(torch.ones(old), torch.ones(new), scale, scale)
