import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from inlay.branches import attach
from inlay.branches.delta import applied
from inlay.branches.history import History
from inlay.branches.movement import LayerMovement, Movement, compare
from inlay.errors import InlayError


class _Gated(nn.Conv2d):
    """A convolution with a buffer `gamma`."""

    def __init__(self) -> None:
        super().__init__(2, 3, 3)
        self.register_buffer("gamma", torch.randn(3))


class _Network(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.token = nn.Parameter(torch.randn(2))
            self.last = _Gated()
            self.first = nn.Linear(3, 2, bias=False)
            self.norm = nn.BatchNorm1d(2)
            self.head = nn.Linear(2, 2)


def _slow(layer: str, before: dict[str, Tensor], after: dict[str, Tensor]) -> LayerMovement:
    squares = changes = largest = 0.0
    gamma: list[float] = []
    for name, old in before.items():
        module, _, part = name.rpartition(".")
        if module != layer or not old.is_floating_point():
            continue
        for a, b in zip(old.flatten().tolist(), after[name].flatten().tolist(), strict=True):
            if part == "gamma":
                gamma.append(abs(b - a))
            else:
                squares, changes, largest = squares + a * a, changes + (b - a) ** 2, max(largest, abs(b - a))
    change_of_gamma = sum(gamma) / len(gamma) if gamma else None
    return LayerMovement(layer, math.sqrt(squares), math.sqrt(changes), largest, change_of_gamma)


def _assert_rows(rows: tuple[LayerMovement, ...], expected: list[LayerMovement]) -> None:
    assert [row.name for row in rows] == [row.name for row in expected]
    for row, slow in zip(rows, expected, strict=True):
        assert (row.size, row.change, row.max_change) == pytest.approx((slow.size, slow.change, slow.max_change))
        assert row.relative == pytest.approx(slow.change / slow.size)
        assert row.gamma_change == (None if slow.gamma_change is None else pytest.approx(slow.gamma_change))


@pytest.fixture
def stages(tmp_path: Path) -> tuple[History, _Network]:
    """A history of two stages that does not track the head, and the network at its base."""
    model = _Network()
    history = History(tmp_path)
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("head.")}
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        names = ["last.weight", "last.bias", "last.gamma", "first.weight", "token"]
        delta = {name: (seed + 1) * torch.randn(state[name].shape, generator=generator) for name in names}
        history.record(state, delta, {})
        state = applied(state, delta)
    return history, model


def test_rows_follow_the_loop_in_the_order_of_the_network(stages: tuple[History, _Network]) -> None:
    history, _ = stages
    before, after = history.state(1), history.state(2)
    rows = compare(history.stage(1), history.stage(2)).rows
    _assert_rows(rows, [_slow(layer, before, after) for layer in ("", "last", "first", "norm")])
    assert rows[1].gamma_change and rows[2].gamma_change is None
    assert rows[3].change == rows[3].relative == 0


def test_stages_and_networks_mix(stages: tuple[History, _Network]) -> None:
    history, model = stages
    between_stages = compare(history.stage(0), history.stage(2)).rows
    assert compare(model, history.stage(2)).rows == between_stages
    assert compare(model, model).rows[-1].name == "head"
    other = _Network(seed=1)
    layers = ("", "last", "first", "norm", "head")
    _assert_rows(compare(model, other).rows, [_slow(layer, model.state_dict(), other.state_dict()) for layer in layers])


def test_the_total_takes_in_all_layers(stages: tuple[History, _Network]) -> None:
    history, _ = stages
    before, after = history.state(0), history.state(2)
    names = [name for name in before if "gamma" not in name and before[name].is_floating_point()]
    old = torch.cat([before[name].double().flatten() for name in names])
    change = torch.cat([after[name].double().flatten() for name in names]) - old
    total = compare(history.stage(0), history.stage(2)).total
    assert total.relative == pytest.approx((change.norm() / old.norm()).item())
    assert total.max_change == change.abs().max().item()


def test_movement_is_measured_in_float64(tmp_path: Path) -> None:
    before, after = nn.Linear(100, 100), nn.Linear(100, 100)
    with torch.no_grad():
        before.weight.fill_(1e30)
        after.weight.fill_(2e30)
        after.bias.copy_(before.bias)
    row = compare(before, after).rows[0]
    assert row.relative == pytest.approx(1.0)
    assert row.size == pytest.approx(1e32)


def test_half_and_single_precision_compare() -> None:
    model = nn.Linear(4, 4)
    half = nn.Linear(4, 4)
    half.load_state_dict(model.state_dict())
    row = compare(model, half.half()).rows[0]
    assert 0 < row.relative < 2**-10


def test_a_layer_that_rises_from_zeros_moved_infinitely() -> None:
    zeros, ones = nn.Linear(2, 2), nn.Linear(2, 2)
    for model, value in ((zeros, 0.0), (ones, 1.0)):
        for parameter in model.parameters():
            nn.init.constant_(parameter, value)
    assert compare(zeros, ones).rows[0].relative == math.inf
    assert compare(zeros, zeros).rows[0].relative == 0.0


def test_a_layer_of_gamma_alone_is_measured_by_it() -> None:
    before, after = nn.Module(), nn.Module()
    before.register_buffer("gamma", torch.tensor([3.0, 4.0]))
    after.register_buffer("gamma", torch.tensor([3.0, 5.0]))
    assert compare(before, after).rows == (LayerMovement("", 5.0, 1.0, 1.0, 0.5),)


def test_the_table_is_aligned_and_ends_with_the_total(stages: tuple[History, _Network]) -> None:
    history, _ = stages
    movement = compare(history.stage(0), history.stage(1))
    header, _, *lines = str(movement).splitlines()
    assert header.split() == ["layer", "relative", "max", "|Δ|", "gamma"]
    assert [line.split()[0] for line in lines] == ["(network)", "last", "first", "norm", "total"]
    for line, row in zip(lines, (*movement.rows, movement.total), strict=True):
        assert line.index(f"{row.relative:.2e}") == header.index("relative")
        assert line.index(f"{row.max_change:.2e}", header.index("max")) == header.index("max")
    assert lines[1].endswith(f"{movement.rows[1].gamma_change:.2e}")
    assert f"{movement.total.relative:.2e}" in lines[-1]


def test_rows_can_be_sorted_by_movement(stages: tuple[History, _Network]) -> None:
    history, _ = stages
    movement = compare(history.stage(0), history.stage(2))
    ordered = movement.sorted_by_movement()
    relative = [row.relative for row in ordered.rows]
    assert relative == sorted(relative, reverse=True)
    assert set(ordered.rows) == set(movement.rows) and ordered.rows != movement.rows


def test_nan_is_not_hidden_in_the_total() -> None:
    rows = (LayerMovement("a", 1.0, 1.0, 1.0, None), LayerMovement("b", 1.0, math.nan, math.nan, None))
    for order in (rows, rows[::-1]):
        assert math.isnan(Movement(order).total.max_change) and math.isnan(Movement(order).total.relative)


def test_different_networks_are_refused(stages: tuple[History, _Network]) -> None:
    history, model = stages
    with pytest.raises(InlayError, match="without a common layer"):
        compare(model, nn.Sequential(nn.Linear(2, 2)))
    model.first = nn.Linear(5, 2, bias=False)
    with pytest.raises(InlayError, match=r"'first.weight' has the shapes \[2, 5\] and \[2, 3\]"):
        compare(model, history.stage(1))


def test_a_hybrid_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    hybrid = attach(model, torch.randn(2, 3, 6, 6))
    with pytest.raises(InlayError, match="merge them"):
        compare(model, hybrid)
