import gc
import warnings
import weakref
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo.utils
import torch._inductor.config
from torch import Tensor, nn
from torch.nn import functional

from inlay.engine import step as step_module
from inlay.engine.batch import Batch
from inlay.engine.step import Pace, Stepper, chosen_pace, quiet_compiler
from inlay.engine.work import Work
from inlay.engine.world import World
from inlay.errors import InlayError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ALONE, GROUP = World(), World(0, 2, 0, parallel=True)
WEIGHTS = {"fit": 0.5, "size": 2.0}


class LinearFit(Work):
    """A linear map of pixels under a squared error and the squared size of its weights."""

    def __init__(self, dtype: torch.dtype = torch.float64, hidden: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            layers = [nn.Linear(4, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()] if hidden else []
            self.map = nn.Sequential(*layers, nn.Linear(hidden or 4, 2)).to(dtype)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        weight = self.map[-1].get_parameter("weight")
        outputs = self.map(batch.images.flatten(1).to(weight.dtype) / 255)
        targets = torch.stack([batch.indices, batch.indices + batch.key], dim=1).to(weight.dtype)
        return {"size": weight.square().sum(), "fit": functional.mse_loss(outputs, targets), "idle": weight.sum()}

    def weights(self, progress: float) -> Mapping[str, float]:
        return {"fit": 1 - progress, "size": progress}


def _batch(number: int, size: int = 8) -> Batch:
    draw = torch.Generator().manual_seed(number)
    images = torch.randint(256, (size, 1, 2, 2), generator=draw).to(torch.uint8)
    rows = torch.randperm(50, generator=draw)[:size]
    return Batch(images, images, rows, rows, torch.tensor(number))


def _sgd(work: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(work.parameters(), lr=1.0, fused=True, **options)


def _slow_step(weight: Tensor, bias: Tensor, batch: Batch, weights: Mapping[str, float], rate: float) -> list[float]:
    """Take one step by loops over all numbers, in place; return the weighted losses."""
    inputs = [[float(pixel) / 255 for pixel in row.flatten().tolist()] for row in batch.images]
    key, count = int(batch.key), len(inputs)
    weight_gradient = [[2 * weights["size"] * value for value in row] for row in weight.tolist()]
    bias_gradient = [0.0, 0.0]
    error = 0.0
    for row, index in zip(inputs, batch.indices.tolist(), strict=True):
        for output, target in enumerate((index, index + key)):
            given = sum(w * x for w, x in zip(weight[output].tolist(), row, strict=True)) + bias[output].item()
            error += (given - target) ** 2 / (2 * count)
            slope = weights["fit"] * 2 * (given - target) / (2 * count)
            bias_gradient[output] += slope
            for place, value in enumerate(row):
                weight_gradient[output][place] += slope * value
    size = sum(value**2 for row in weight.tolist() for value in row)
    weight -= rate * torch.tensor(weight_gradient, dtype=torch.float64)
    bias -= rate * torch.tensor(bias_gradient, dtype=torch.float64)
    return [weights["fit"] * error, weights["size"] * size]


def test_eager_steps_equal_steps_by_hand() -> None:
    work = LinearFit()
    stepper = Stepper(work, _sgd(work), "eager", CPU, ALONE)
    assert stepper.names == ("fit", "size")
    weight, bias = (work.map[0].get_parameter(name).detach().clone() for name in ("weight", "bias"))
    plans = [(WEIGHTS, 0.1), ({"fit": 1.0, "size": 0.0}, 0.2), ({"size": 0.3, "fit": 0.0}, 0.05)]
    for number, (weights, rate) in enumerate(plans):
        stepper(_batch(number), weights, rate)
        expected = _slow_step(weight, bias, _batch(number), weights, rate)
        assert stepper.values.tolist() == pytest.approx(expected, rel=1e-12)
        torch.testing.assert_close(work.map[0].get_parameter("weight").detach(), weight, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(work.map[0].get_parameter("bias").detach(), bias, rtol=1e-12, atol=1e-12)


def test_every_group_gets_the_learning_rate() -> None:
    work = LinearFit(hidden=3)
    optimizer = torch.optim.SGD([{"params": [p], "lr": 7.0} for p in work.parameters()])
    Stepper(work, optimizer, "eager", CPU, ALONE)(_batch(0), WEIGHTS, 0.125)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125] * 5


def test_losses_are_weighted_in_the_precision_of_the_parameters() -> None:
    for dtype in (torch.float32, torch.float64):
        work = LinearFit(dtype)
        stepper = Stepper(work, _sgd(work), "eager", CPU, ALONE)
        stepper(_batch(0), WEIGHTS, 0.1)
        assert stepper.values.dtype == dtype and not stepper.values.requires_grad


def test_values_are_overwritten_by_the_next_step() -> None:
    work = LinearFit()
    stepper = Stepper(work, _sgd(work), "eager", CPU, ALONE)
    found = []
    for number in range(3):
        stepper(_batch(number), WEIGHTS, 0.1)
        found.append(stepper.values.tolist())
    assert found[0] != found[1] != found[2]


def test_a_loss_without_a_weight_is_an_error() -> None:
    work = LinearFit()
    with pytest.raises(KeyError):
        Stepper(work, _sgd(work), "eager", CPU, ALONE)(_batch(0), {"fit": 1.0}, 0.1)


def test_a_step_on_the_cpu_is_ready_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "time", SimpleNamespace(monotonic=iter([5.0, 6.0]).__next__))
    work = LinearFit()
    stepper = Stepper(work, _sgd(work), "eager", CPU, ALONE)
    assert stepper.ready_at is None
    for number in range(3):
        stepper(_batch(number), WEIGHTS, 0.1)
        assert stepper.ready_at == 5.0


def _trained(pace: Pace, steps: int = 4) -> tuple[dict[str, Tensor], list[list[float]]]:
    work = LinearFit(torch.float32, hidden=6).train()
    stepper = Stepper(work, _sgd(work, momentum=0.9, nesterov=True, weight_decay=1e-3), pace, CPU, ALONE)
    values = []
    for number in range(steps):
        stepper(_batch(number), {"fit": 0.01 * number, "size": 0.5}, 0.1 / (number + 1))
        values.append(stepper.values.tolist())
    return {name: tensor.clone() for name, tensor in work.state_dict().items()}, values


def test_compiled_steps_give_the_weights_of_eager_ones() -> None:
    torch._dynamo.reset()
    (eager, values), (compiled, compiled_values) = _trained("eager"), _trained("compile")
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.tensor(compiled_values), torch.tensor(values), rtol=1e-4, atol=1e-5)
    start = LinearFit(torch.float32, hidden=6).state_dict()
    assert all((eager[name] - start[name]).abs().max() > 1e-3 for name in start if "num_batches" not in name)


def test_every_loop_of_a_process_is_compiled() -> None:
    with torch._dynamo.config.patch(recompile_limit=2):
        for _ in range(4):
            before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            _trained("compile", steps=1)
            assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1


@pytest.mark.parametrize(("wished", "world"), [("eager", ALONE), ("eager", GROUP), ("compile", ALONE)])
@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize("steps", [1, 10**6])
def test_a_pace_that_is_wished_is_kept(wished: Pace, device: torch.device, steps: int, world: World) -> None:
    assert chosen_pace(wished, device, steps, steps, world) == wished


def test_compiling_is_for_one_process() -> None:
    with pytest.raises(InlayError, match=r"for one process only; write pace=auto or pace=eager\.$"):
        chosen_pace("compile", CUDA, 10**6, 10**6, GROUP)


def test_a_machine_that_cannot_compile_is_told_what_helps() -> None:
    work = LinearFit(hidden=5)
    stepper = Stepper(work, _sgd(work), "compile", CPU, ALONE, "base.training")
    missing = {"cpp.cxx": (None, "/no/such/compiler"), "force_disable_caches": True}
    with (
        torch._inductor.config.patch(missing),
        pytest.raises(InlayError, match=r"pace=compile \(.*\); write --set base\.training\.pace=eager\.$"),
    ):
        stepper(_batch(1), WEIGHTS, 0.1)


def test_what_the_compiler_says_of_its_choices_is_kept_back() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with quiet_compiler():
            for module in ("torch._inductor.compile_fx", "torch._inductor.lowering", "torch._inductors", "somewhere"):
                warnings.warn_explicit(module, UserWarning, "file.py", 1, module=module)
        warnings.warn_explicit("afterwards", UserWarning, "file.py", 1, module="torch._inductor.lowering")
    assert [str(warning.message) for warning in said] == ["torch._inductors", "somewhere", "afterwards"]


def test_a_stepper_that_is_closed_is_freed_at_once() -> None:
    work = LinearFit()
    stepper = Stepper(work, _sgd(work), "eager", CPU, ALONE)
    stepper(_batch(1), WEIGHTS, 0.1)
    stepper.close()
    assert all(parameter.grad is None for parameter in work.parameters())
    gone = weakref.ref(stepper)
    gc.disable()
    try:
        del stepper
        assert gone() is None
    finally:
        gc.enable()


def test_graphs_are_for_one_process_on_a_cuda_device() -> None:
    assert chosen_pace("graph", CUDA, 10, 10, ALONE) == "graph"
    for device, world in ((CPU, ALONE), (CUDA, GROUP), (CPU, GROUP), (CUDA, World(parallel=True))):
        with pytest.raises(InlayError, match=r"on a CUDA device only; write pace=auto or pace=eager\.$"):
            chosen_pace("graph", device, 10**6, 10**6, world)


@pytest.mark.parametrize(
    ("device", "world", "steps", "images", "pace"),
    [
        (CPU, ALONE, 10, 10, "eager"),
        (CPU, ALONE, 10**6, 10**8, "eager"),
        (CPU, GROUP, 10**6, 10**8, "eager"),
        (CUDA, GROUP, 10, 10, "eager"),
        (CUDA, GROUP, 10**6, 10**8, "eager"),
        (CUDA, ALONE, 1, 512, "graph"),
        (CUDA, ALONE, 4999, 1_499_999, "graph"),
        (CUDA, ALONE, 5000, 5000, "compile"),
        (CUDA, ALONE, 100, 1_500_000, "compile"),
    ],
)
def test_auto_chooses_by_device_processes_steps_and_images(
    device: torch.device, world: World, steps: int, images: int, pace: Pace
) -> None:
    assert chosen_pace("auto", device, steps, images, world) == pace
