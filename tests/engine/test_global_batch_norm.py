import pytest
import torch
from torch import Tensor, nn

from inlay.engine.world import World
from world_child import NORM_CASES, NormInputs, Results, launch, normalise, train

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-2}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    """What each of two processes saw."""
    return launch("batch_norm", 2, tmp_path_factory.mktemp("batch_norm"))


def _whole_batch(name: str) -> Results:
    """The case in one process, in float64 with the rounded inputs of the case."""
    inputs = NormInputs(NORM_CASES[name])
    inputs.rows, inputs.gradient = inputs.rows.double(), inputs.gradient.double()
    if inputs.weight is not None and inputs.bias is not None:
        inputs.weight, inputs.bias = (nn.Parameter(part.detach().double()) for part in (inputs.weight, inputs.bias))
    if inputs.mean is not None and inputs.var is not None:
        inputs.mean, inputs.var = inputs.mean.double(), inputs.var.double()
    return normalise(inputs, slice(None), 1)


def _check(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", NORM_CASES)
def test_outputs_and_gradients_of_rows(seen: list[Results], name: str) -> None:
    case, wanted = NORM_CASES[name], _whole_batch(name)
    parts = [results[name] for results in seen]
    tolerance = 1e-3 if case.offset else TOLERANCE[case.dtype]
    assert {part["output"].dtype for part in parts} == {part["rows"].dtype for part in parts} == {case.dtype}
    _check(torch.cat([part["output"] for part in parts]), wanted["output"], tolerance)
    _check(torch.cat([part["rows"] for part in parts]) / len(parts), wanted["rows"], tolerance)


@pytest.mark.parametrize("name", [name for name, case in NORM_CASES.items() if case.affine])
def test_gradients_of_weight_and_bias_average_to_the_whole(seen: list[Results], name: str) -> None:
    case, wanted = NORM_CASES[name], _whole_batch(name)
    # Sums over all rows: rounding grows with them.
    tolerance = 1e-2 if case.offset else 5 * TOLERANCE[case.dtype]
    for parameter in ("weight", "bias"):
        parts = [results[name][parameter] for results in seen]
        assert {part.dtype for part in parts} == {case.parameter_dtype or case.dtype}
        _check(torch.stack(parts).double().mean(0), wanted[parameter], tolerance)


@pytest.mark.parametrize("name", [name for name, case in NORM_CASES.items() if case.running])
def test_running_statistics(seen: list[Results], name: str) -> None:
    case, wanted = NORM_CASES[name], _whole_batch(name)
    kind = case.parameter_dtype or case.dtype
    for statistic in ("mean", "var"):
        for results in seen:
            assert results[name][statistic].dtype == kind
            assert torch.equal(results[name][statistic], seen[0][name][statistic])
            _check(results[name][statistic], wanted[statistic], TOLERANCE[kind])


def test_memory_format_is_kept(seen: list[Results]) -> None:
    for results in seen:
        assert results["channels last"]["channels_last"]
        assert not results["4d"]["channels_last"]


def test_evaluation_is_left_alone(seen: list[Results]) -> None:
    assert seen[0]["evaluation"]


def test_statistics_are_exact_under_autocast(seen: list[Results]) -> None:
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    with torch.autocast("cpu", torch.bfloat16):
        wanted = layers(torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(2)))
    parts = [results["autocast"] for results in seen]
    found = torch.cat([part["output"] for part in parts])
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)
    for part in parts:
        torch.testing.assert_close(part["var"], layers[1].running_var, rtol=1e-5, atol=0)


def test_two_processes_train_as_one(seen: list[Results]) -> None:
    alone = train(World(), torch.float64)
    for results in seen:
        for name, wanted in alone.items():
            torch.testing.assert_close(results["training"]["torch.float64"][name], wanted, rtol=0, atol=1e-12, msg=name)
