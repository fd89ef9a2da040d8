import math
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from inlay.branches import gates
from inlay.branches.gates import AFF, AMM, IMM, Constant, Gate, gate, register
from inlay.errors import InlayError


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


BASE, NOVEL, GAMMA = _random(2, 3, 2, 2), _random(2, 3, 2, 2, seed=1), torch.tensor([-2.0, 0.1, 1.5]).double()


@pytest.mark.parametrize(
    ("chosen", "factor"),
    [
        (IMM(), lambda base, gamma: 1.0),
        (AFF(), lambda base, gamma: _sigmoid(-base)),
        (AMM(), lambda base, gamma: _sigmoid(-gamma)),
        (AMM(absolute=True), lambda base, gamma: _sigmoid(-abs(gamma))),
        (Constant(0.25), lambda base, gamma: 0.25),
    ],
)
def test_fuse_against_loops(chosen: Gate, factor: object) -> None:
    assert callable(factor)
    fused = chosen.fuse(BASE, NOVEL, GAMMA)
    for n in range(2):
        for c in range(3):
            for y in range(2):
                for x in range(2):
                    base, novel = BASE[n, c, y, x].item(), NOVEL[n, c, y, x].item()
                    expected = base + factor(base, GAMMA[c].item()) * novel
                    assert fused[n, c, y, x].item() == pytest.approx(expected, abs=1e-14)
            if chosen.mergeable:
                scale = chosen.scale(GAMMA)[c].item()
                assert scale == pytest.approx(factor(0.0, GAMMA[c].item()), abs=1e-14)


def test_aff_gradients() -> None:
    base, novel = BASE.clone().requires_grad_(), NOVEL.clone().requires_grad_()
    base_grad, novel_grad = torch.autograd.grad(AFF().fuse(base, novel, GAMMA).sum(), (base, novel))
    gated = torch.sigmoid(-BASE)
    assert torch.allclose(novel_grad, gated, atol=1e-15)
    assert torch.allclose(base_grad, 1 - gated * (1 - gated) * NOVEL, atol=1e-14)
    assert torch.autograd.gradcheck(lambda f_b, f_n: AFF().fuse(f_b, f_n, GAMMA), (base, novel))


def test_aff_has_no_constant_scale() -> None:
    assert not AFF.mergeable
    with pytest.raises(InlayError, match="depend on the image"):
        AFF().scale(GAMMA)


def test_lookup() -> None:
    assert gate("imm") == IMM()
    assert gate("aff") == AFF()
    assert gate("amm", absolute=True) == AMM(absolute=True) != gate("amm")
    assert gate("constant", value=0.5) == Constant(0.5)
    own = AMM()
    assert gate(own) is own


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gru", {}, "write one of aff, amm, constant, imm"),
        ("amm", {"abs": True}, "takes absolute, but was given abs"),
        ("imm", {"value": 1.0}, "takes no options"),
        ("constant", {}, "needs value, but was given nothing"),
        ("constant", {"value": math.nan}, "finite value"),
        (AMM(), {"absolute": True}, "go with the name"),
    ],
)
def test_bad_lookups_are_refused(name: str | Gate, options: dict[str, object], message: str) -> None:
    with pytest.raises(InlayError, match=message):
        gate(name, **options)


def test_two_gates_of_one_name_are_refused() -> None:
    @dataclass(frozen=True)
    class Double(Gate):
        name: ClassVar[str] = "amm"

        def scale(self, gamma: Tensor) -> Tensor:
            return 2 * gamma

    with pytest.raises(ValueError, match="'amm' exists already"):
        register(Double)
    assert gate("amm") == AMM()


def test_an_option_with_a_default_factory_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Summed(Gate):
        name: ClassVar[str] = "summed"
        parts: tuple[float, ...] = field(default_factory=lambda: (0.25, 0.5))

        def scale(self, gamma: Tensor) -> Tensor:
            return torch.full_like(gamma, sum(self.parts))

    monkeypatch.setattr(gates, "_GATES", dict(gates._GATES))
    register(Summed)
    assert gate("summed").scale(GAMMA).tolist() == [0.75] * 3
    assert gate("summed", parts=(1.0,)).scale(GAMMA).tolist() == [1.0] * 3


def test_gates_work_on_features_without_a_map() -> None:
    fused = AMM().fuse(BASE[:, :, 0, 0], NOVEL[:, :, 0, 0], GAMMA)
    assert torch.allclose(fused, AMM().fuse(BASE, NOVEL, GAMMA)[:, :, 0, 0])
