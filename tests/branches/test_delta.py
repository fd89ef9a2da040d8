import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from inlay.branches.delta import applied, fingerprint, moved, rounded
from inlay.errors import InlayError

FLOATING = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def _state(dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "conv.weight": torch.randn(4, 3, 2, 2, generator=generator).to(dtype),
        "conv.bias": torch.randn(4, generator=generator).to(dtype),
        "scale": torch.randn((), generator=generator).to(dtype),
        "norm.num_batches_tracked": torch.tensor(7 + seed),
        "mask": torch.tensor([True, False]),
    }


def _floats(size: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=size, max_size=size)


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("storage", [None, *FLOATING])
def test_rounding_and_applying_follow_the_loop(dtype: torch.dtype, storage: torch.dtype | None) -> None:
    state = _state(dtype)
    delta = {name: torch.randn(state[name].shape, dtype=torch.float64) for name in ("conv.weight", "scale")}
    stored = rounded(delta, state, storage)
    result = applied(state, stored)
    for name, change in delta.items():
        assert stored[name].dtype == (storage or dtype)
        expected = []
        for value, step in zip(state[name].flatten(), change.flatten(), strict=True):
            expected.append(value + step.to(storage or dtype).to(dtype))
        assert torch.equal(result[name].flatten(), torch.stack(expected))
        assert result[name].dtype == dtype
    assert all(result[name] is state[name] for name in state if name not in delta)
    assert list(result) == list(state)


def test_a_delta_of_integers_and_booleans_is_the_new_value() -> None:
    state = _state()
    delta = {"norm.num_batches_tracked": torch.tensor(3), "mask": torch.tensor([False, False])}
    stored = rounded(delta, state, torch.float16)
    assert all(stored[name] is delta[name] for name in delta)
    result = applied(state, stored)
    assert all(torch.equal(result[name], delta[name]) for name in delta)
    delta["mask"][0] = True
    assert not result["mask"][0]


def test_applying_changes_neither_state_nor_delta_and_records_no_gradient() -> None:
    state = {"weight": torch.ones(2, 3, requires_grad=True)}
    delta = {"weight": torch.full((2, 3), 0.5, requires_grad=True)}
    result = applied(state, delta)
    assert not result["weight"].requires_grad
    assert torch.equal(result["weight"], torch.full((2, 3), 1.5))
    assert torch.equal(state["weight"], torch.ones(2, 3))
    assert torch.equal(delta["weight"], torch.full((2, 3), 0.5))


def test_applying_keeps_the_memory_format() -> None:
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    result = applied({"weight": weight}, {"weight": torch.randn(4, 3, 2, 2)})
    assert result["weight"].is_contiguous(memory_format=torch.channels_last)


def test_a_delta_too_large_for_the_storage_type_is_refused_by_name() -> None:
    state = _state()
    delta = {"conv.bias": torch.tensor([0.0, 1e5, 0.0, 0.0], dtype=torch.float64)}
    with pytest.raises(InlayError, match=r"'conv.bias' is too large for float16; store it as torch.float32"):
        rounded(delta, state, torch.float16)
    assert rounded(delta, state, torch.bfloat16)["conv.bias"].isfinite().all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_delta_that_is_not_finite_is_refused_by_name(value: float) -> None:
    with pytest.raises(InlayError, match=r"'conv.bias' is not finite"):
        rounded({"conv.bias": torch.tensor([0.0, value, 0.0, 0.0])}, _state())


def test_a_storage_type_that_is_not_floating_is_refused() -> None:
    with pytest.raises(InlayError, match=r"cannot be stored as torch.int8; choose one of torch.float16"):
        rounded({}, _state(), torch.int8)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("other.weight", torch.zeros(4)),
        ("conv.bias", torch.zeros(5)),
        ("conv.bias", torch.zeros(4, dtype=torch.int64)),
        ("norm.num_batches_tracked", torch.tensor(1.0)),
        ("mask", torch.tensor([1, 0])),
    ],
)
def test_a_delta_of_another_network_is_refused(name: str, change: Tensor) -> None:
    with pytest.raises(InlayError, match=rf"The delta belongs to another network: .*'{name}'"):
        applied(_state(), {name: change})
    with pytest.raises(InlayError, match=rf"The delta belongs to another network: .*'{name}'"):
        rounded({name: change}, _state())


@given(_floats(4), _floats(4))
def test_applying_what_moved_arrives_within_the_rounding_of_one_sum(old: list[float], new: list[float]) -> None:
    before, after = {"w": torch.tensor(old)}, {"w": torch.tensor(new)}
    delta = moved(before, after)
    result = applied(before, rounded(delta, before))
    if not delta:
        assert torch.equal(result["w"], after["w"])
        return
    assert delta["w"].dtype == torch.float64
    for a, b, change, arrived in zip(old, new, delta["w"].tolist(), result["w"].tolist(), strict=True):
        assert change == b - a
        # One rounding of the delta and one of the sum, each by half a step; below 1e-44 all numbers are one step.
        allowed = 2.0**-24 * (abs(change) + abs(b)) * (1 + 1e-6) + 1e-44
        assert abs(arrived - b) <= allowed


@given(st.lists(st.integers(-(2**20), 2**20), min_size=3, max_size=3), st.integers(-8, 8))
def test_what_moved_by_exact_numbers_arrives_bit_for_bit(numbers: list[int], exponent: int) -> None:
    before = {"w": torch.tensor(numbers, dtype=torch.float32) * 2.0**exponent}
    after = {"w": torch.tensor(numbers[::-1], dtype=torch.float32) * 2.0**exponent}
    result = applied(before, rounded(moved(before, after), before))
    assert torch.equal(result["w"], after["w"])


def test_only_tensors_with_other_bits_moved() -> None:
    before = {**_state(), "nan": torch.tensor([math.nan, 1.0]), "zero": torch.tensor([0.0])}
    after = {name: tensor.clone() for name, tensor in before.items()}
    assert moved(before, after) == {}
    after["conv.bias"][2] += 1
    after["norm.num_batches_tracked"] += 5
    after["zero"] = torch.tensor([-0.0])
    delta = moved(before, after)
    assert list(delta) == ["conv.bias", "norm.num_batches_tracked", "zero"]
    assert delta["conv.bias"].tolist() == (after["conv.bias"].double() - before["conv.bias"].double()).tolist()
    assert delta["norm.num_batches_tracked"].item() == 12


def test_what_moved_shares_no_memory_with_the_states() -> None:
    before, after = {"count": torch.tensor([1])}, {"count": torch.tensor([2])}
    delta = moved(before, after)
    after["count"][0] = 9
    assert delta["count"].item() == 2


@pytest.mark.parametrize("changed", ["missing", "added", "reshaped", "retyped"])
def test_states_of_different_networks_are_refused(changed: str) -> None:
    before, after = _state(), _state()
    if changed == "missing":
        del after["scale"]
    elif changed == "added":
        after["more"] = torch.zeros(1)
    elif changed == "reshaped":
        after["conv.bias"] = torch.zeros(5)
    else:
        after["conv.bias"] = after["conv.bias"].half()
    with pytest.raises(InlayError, match=r"network"):
        moved(before, after)


@pytest.mark.parametrize("dtype", FLOATING)
def test_the_fingerprint_does_not_depend_on_order_or_memory_format(dtype: torch.dtype) -> None:
    state = _state(dtype)
    reordered = {name: state[name] for name in reversed(state)}
    reordered["conv.weight"] = state["conv.weight"].to(memory_format=torch.channels_last)
    reordered["conv.bias"] = torch.stack([state["conv.bias"]] * 2, dim=1)[:, 0]
    assert not reordered["conv.bias"].is_contiguous()
    assert fingerprint(reordered) == fingerprint(state)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_fingerprint_does_not_depend_on_the_device() -> None:
    state = _state()
    assert fingerprint({name: tensor.cuda() for name, tensor in state.items()}) == fingerprint(state)


@pytest.mark.parametrize("dtype", FLOATING)
def test_every_change_changes_the_fingerprint(dtype: torch.dtype) -> None:
    state = _state(dtype)
    least = {name: tensor.clone() for name, tensor in state.items()}
    least["scale"] = torch.nextafter(state["scale"].float(), torch.tensor(9.0)).to(dtype)
    if dtype in (torch.float16, torch.bfloat16):
        least["scale"] = (state["scale"].view(torch.int16) + 1).view(dtype)
    renamed = {name.replace("scale", "other"): tensor for name, tensor in state.items()}
    reshaped = {**state, "conv.weight": state["conv.weight"].reshape(3, 4, 2, 2)}
    retyped = {**state, "mask": state["mask"].to(torch.uint8)}
    fewer = {name: tensor for name, tensor in state.items() if name != "mask"}
    negative = {**state, "scale": -state["scale"]}
    found = {fingerprint(each) for each in (state, least, renamed, reshaped, retyped, fewer, negative)}
    assert len(found) == 7
