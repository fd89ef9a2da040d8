import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from inlay.branches.gates import AFF, AMM, IMM, Constant, Gate, MeanAMM, ShuffledAMM, gate, gate_names, register
from inlay.branches.gates.gate import _GATES
from inlay.errors import InlayError


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


BASE, NOVEL, GAMMA = _random(2, 3, 2, 2), _random(2, 3, 2, 2, seed=1), torch.tensor([-2.0, 0.1, 1.5]).double()


@pytest.fixture
def own_registry() -> Iterator[None]:
    saved = dict(_GATES)
    yield
    _GATES.clear()
    _GATES.update(saved)


@pytest.mark.parametrize(
    ("chosen", "factor"),
    [
        (IMM(), lambda gamma: 1.0),
        (AMM(), lambda gamma: _sigmoid(-gamma)),
        (AMM(absolute=True), lambda gamma: _sigmoid(-abs(gamma))),
        (Constant(0.25), lambda gamma: 0.25),
    ],
    ids=["imm", "amm", "absolute amm", "constant"],
)
def test_scale_against_loops(chosen: Gate, factor: Callable[[float], float]) -> None:
    assert chosen.mergeable
    scale = chosen.scale(GAMMA)
    assert scale.dtype == GAMMA.dtype
    assert scale.tolist() == pytest.approx([factor(gamma) for gamma in GAMMA.tolist()], abs=1e-15)


def test_the_mean_control_keeps_the_strength_of_the_gate() -> None:
    mean = sum(_sigmoid(-gamma) for gamma in GAMMA.tolist()) / len(GAMMA)
    assert MeanAMM().scale(GAMMA).tolist() == pytest.approx([mean] * len(GAMMA), abs=1e-15)


@pytest.mark.parametrize("channels", [1, 2, 3, 6, 16, 60, 64, 512])
def test_the_shuffled_control_deals_every_value_once(channels: int) -> None:
    gamma = _random(channels)
    shuffled = ShuffledAMM().scale(gamma)
    assert sorted(shuffled.tolist()) == sorted(AMM().scale(gamma).tolist())
    if channels > 2:
        stayed = (shuffled == AMM().scale(gamma)).sum().item()
        assert stayed <= channels / 2


def test_feature_fusion_against_loops() -> None:
    fused = AFF().fuse(BASE, NOVEL)
    assert fused.shape == BASE.shape
    for base, novel, out in zip(
        BASE.flatten().tolist(), NOVEL.flatten().tolist(), fused.flatten().tolist(), strict=True
    ):
        assert out == pytest.approx(base + _sigmoid(-base) * novel, abs=1e-14)


def test_feature_fusion_gradients() -> None:
    base, novel = BASE.clone().requires_grad_(), NOVEL.clone().requires_grad_()
    base_grad, novel_grad = torch.autograd.grad(AFF().fuse(base, novel).sum(), (base, novel))
    gated = torch.sigmoid(-BASE)
    assert torch.allclose(novel_grad, gated, rtol=0, atol=1e-15)
    assert torch.allclose(base_grad, 1 - gated * (1 - gated) * NOVEL, rtol=0, atol=1e-14)
    assert torch.autograd.gradcheck(AFF().fuse, (base, novel))


def test_feature_fusion_has_no_constant_scale() -> None:
    assert not AFF.mergeable
    with pytest.raises(InlayError, match="AFF gates depend on the image and cannot be merged; keep the hybrid"):
        AFF().scale(GAMMA)


@pytest.mark.parametrize("chosen", [IMM(), AMM(), Constant(0.5)], ids=str)
def test_gates_that_merge_have_a_scale_and_no_fusion(chosen: Gate) -> None:
    with pytest.raises(NotImplementedError, match="given by its scale"):
        chosen.fuse(BASE, NOVEL)


def test_a_mergeable_gate_without_scale_says_what_is_missing() -> None:
    @dataclass(frozen=True)
    class Unfinished(Gate):
        name: ClassVar[str] = "unfinished"

    with pytest.raises(NotImplementedError, match="unfinished defines no scale"):
        Unfinished().scale(GAMMA)


def test_lookup() -> None:
    assert gate("imm") == IMM()
    assert gate("aff") == AFF()
    assert gate("amm", absolute=True) == AMM(absolute=True) != gate("amm")
    assert gate("constant", value=0.5) == Constant(0.5)
    own = AMM()
    assert gate(own) is own
    assert gate_names() == ["aff", "amm", "amm-mean", "amm-shuffled", "constant", "imm"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gru", {}, "write one of aff, amm, amm-mean, amm-shuffled, constant, imm"),
        ("amm", {"abs": True}, "takes absolute, but was given abs"),
        ("imm", {"value": 1.0}, "takes no options"),
        ("constant", {}, "needs value, but was given nothing"),
        ("constant", {"value": math.nan}, "finite value"),
        ("constant", {"value": math.inf}, "finite value"),
        (AMM(), {"absolute": True}, "go with the name"),
    ],
)
def test_bad_lookups_are_refused(name: str | Gate, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InlayError, match=message):
        gate(name, **options)


def _own_gate(part: float) -> type[Gate]:
    @dataclass(frozen=True)
    class Part(Gate):
        name: ClassVar[str] = "part"
        parts: tuple[float, ...] = field(default_factory=lambda: (part, 0.5))

        def scale(self, gamma: Tensor) -> Tensor:
            return torch.full_like(gamma, sum(self.parts))

    return Part


@pytest.mark.usefixtures("own_registry")
def test_a_gate_of_ones_own_is_found_by_its_name() -> None:
    register(_own_gate(0.25))
    assert "part" in gate_names()
    assert gate("part").scale(GAMMA).tolist() == [0.75] * 3
    assert gate("part", parts=(1.0,)).scale(GAMMA).tolist() == [1.0] * 3


@pytest.mark.usefixtures("own_registry")
def test_a_gate_that_is_defined_again_replaces_itself() -> None:
    register(_own_gate(0.25))
    register(_own_gate(0.5))
    assert gate("part").scale(GAMMA).tolist() == [1.0] * 3


def test_another_gate_of_the_same_name_is_refused() -> None:
    @dataclass(frozen=True)
    class Double(Gate):
        name: ClassVar[str] = "amm"

        def scale(self, gamma: Tensor) -> Tensor:
            return 2 * gamma

    with pytest.raises(ValueError, match="'amm' exists already"):
        register(Double)
    assert gate("amm") == AMM()
