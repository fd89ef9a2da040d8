"""One process of a process group: it does what a case asks and writes what it saw.

    python -m torch.distributed.run --standalone --nproc-per-node N world_child.py CASE OUT

CASE is "world" (everything a `World` does) or "batch_norm" (batch norm in all shapes and types); both also train a
small network. The results of the process with rank R are in the file OUT.R.
"""

import atexit
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from inlay.engine.batch_norm import GlobalBatchNorm
from inlay.engine.world import World
from inlay.errors import InlayError

Results = dict[str, Any]

IMAGES = 12
STEPS = 3
MIXED = (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.int16, torch.float64)
"""Types of the tensors that are broadcast."""


class NormCase(NamedTuple):
    """One call of batch norm: the rows of each of two processes, and how they are normalised."""

    rows: tuple[int, int]
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float64
    affine: bool = True
    running: bool = True
    channels_last: bool = False
    offset: float = 0.0
    parameter_dtype: torch.dtype | None = None


NORM_CASES = {
    "2d": NormCase((5, 2), (3,)),
    "one row each": NormCase((1, 1), (3,)),
    "no rows in one process": NormCase((4, 0), (3, 2, 2)),
    "3d": NormCase((2, 2), (3, 5)),
    "4d": NormCase((3, 1), (4, 3, 2)),
    "5d": NormCase((1, 2), (2, 3, 2, 2)),
    "no weights": NormCase((3, 3), (4, 2, 2), affine=False),
    "no running statistics": NormCase((3, 3), (4, 2, 2), running=False),
    "channels last": NormCase((3, 2), (4, 3, 2), channels_last=True),
    "float32": NormCase((6, 4), (4, 3, 3), dtype=torch.float32),
    "float32 far from zero": NormCase((30, 20), (2, 4, 4), dtype=torch.float32, offset=3e3),
    "bfloat16": NormCase((6, 4), (4, 3, 3), dtype=torch.bfloat16, parameter_dtype=torch.float32),
    "all bfloat16": NormCase((6, 4), (4, 3, 3), dtype=torch.bfloat16),
}


class NormInputs:
    """Whole batch of a case, its parameters, and the gradient of the loss at the output."""

    def __init__(self, case: NormCase) -> None:
        draw = torch.Generator().manual_seed(5)
        shape, channels = (sum(case.rows), *case.shape), case.shape[0]
        kind = case.parameter_dtype or case.dtype

        def numbers(*shape: int) -> Tensor:
            return torch.randn(shape, generator=draw, dtype=torch.float64)

        self.rows = (2 * numbers(*shape) + numbers(channels, *[1] * (len(shape) - 2)) + case.offset).to(case.dtype)
        self.gradient = numbers(*shape).to(case.dtype)
        if case.channels_last:
            self.rows = self.rows.to(memory_format=torch.channels_last)
        self.weight = nn.Parameter(numbers(channels).to(kind)) if case.affine else None
        self.bias = nn.Parameter(numbers(channels).to(kind)) if case.affine else None
        self.mean = numbers(channels).to(kind) if case.running else None
        self.var = numbers(channels).exp().to(kind) if case.running else None


def normalise(inputs: NormInputs, part: slice, factor: int) -> Results:
    """Normalise a part of the rows, and go back from a loss that is multiplied by the factor."""
    rows = inputs.rows[part].detach().requires_grad_()
    output = functional.batch_norm(
        rows, inputs.mean, inputs.var, inputs.weight, inputs.bias, training=True, momentum=0.3, eps=1e-3
    )
    output.backward(inputs.gradient[part] * factor)  # type: ignore[no-untyped-call]
    channels_last = output.dim() == 4 and output.is_contiguous(memory_format=torch.channels_last)
    results = {"output": output.detach(), "channels_last": channels_last, "rows": rows.grad}
    if inputs.weight is not None and inputs.bias is not None:
        results |= {"weight": inputs.weight.grad, "bias": inputs.bias.grad}
    if inputs.mean is not None:
        results |= {"mean": inputs.mean, "var": inputs.var}
    return results


class ContrastiveStep(nn.Module):
    """A network and a head with losses that look across the batch of all processes."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.network = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, stride=2),
            nn.BatchNorm2d(6),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 5),
            nn.BatchNorm1d(5),
        )
        self.head = nn.Linear(5, 4)
        self.idle = nn.Linear(2, 2)

    def forward(self, images: Tensor) -> Tensor:
        with self.world.global_statistics():
            own = self.network(images)
        features = self.world.gather(own)
        unit = functional.normalize(features, dim=1)
        partners = torch.arange(len(features), device=features.device).roll(len(features) // 2)
        alike = (unit @ unit.T / 0.5).fill_diagonal_(float("-inf"))
        mean = self.head(features).softmax(1).mean(0)
        loss: Tensor = functional.cross_entropy(alike, partners) + (mean * mean.log()).sum()
        return loss


def train(world: World, dtype: torch.dtype) -> Results:
    """Take steps with the rows of this process; return the gradients of every step and the last state."""
    # Another start in every process: what the main process has must reach all.
    torch.manual_seed(world.rank)
    step = ContrastiveStep(world).to(dtype)
    images = torch.randn(STEPS, IMAGES, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wrapped = world.wrap(step)
    optimiser = torch.optim.SGD(step.parameters(), lr=0.3, momentum=0.9)
    results: Results = {}
    for number, batch in enumerate(images.to(dtype)):
        optimiser.zero_grad()
        loss = wrapped(batch[world.rows(IMAGES)])
        loss.backward()
        gradients = {name: weight.grad for name, weight in step.named_parameters() if weight.grad is not None}
        results |= {f"{number} {name}": gradient.clone() for name, gradient in gradients.items()}
        results[f"{number} loss"] = loss.detach()
        optimiser.step()
    return results | {name: tensor.detach() for name, tensor in step.state_dict().items()}


def mixed_tensors(seed: int) -> list[Tensor]:
    """Tensors of many types and layouts."""
    draw = torch.Generator().manual_seed(seed)
    numbers = [torch.randint(-9, 9, (3, 2 + i), generator=draw) for i in range(len(MIXED))]
    tensors = [number.to(dtype) for number, dtype in zip(numbers, MIXED, strict=True)]
    images = torch.randn(2, 3, 4, 4, generator=draw).to(memory_format=torch.channels_last)
    return [*tensors, tensors[0][0, 0].clone(), images, nn.Parameter(tensors[5].clone()), torch.zeros(0)]


def _fail_first(world: World, error: Exception) -> Results:
    entered, raised = False, ""
    try:
        with world.main_first():
            entered = True
            if world.is_main:
                raise error
    except (InlayError, KeyError) as caught:
        raised = f"{type(caught).__name__}: {caught}"
    return {"entered": entered, "raised": raised}


def _gathered(world: World, dim: int) -> Results:
    part = torch.full((2, 3), float(world.rank)).requires_grad_()
    whole = world.gather(part, dim)
    (whole * torch.arange(whole.numel()).view_as(whole)).sum().backward()  # type: ignore[no-untyped-call]
    return {"whole": whole.detach(), "gradient": part.grad, "same": whole is part}


def _note_slowly(path: Path, rank: int) -> None:
    """Add a line to a file late enough for others to miss it if they do not wait."""
    time.sleep(0.2)
    with path.open("a") as file:
        file.write(f"rank {rank}\n")


def world_case(world: World, out: Path) -> Results:
    results: Results = {
        "again": World.current() is world,
        "facts": [world.rank, world.size, world.local_rank, world.is_main, world.parallel],
        "threads": torch.get_num_threads(),
        "rows": world.rows(IMAGES).indices(IMAGES),
        "gather": [_gathered(world, 0), _gathered(world, 1), _gathered(world, -1)],
        "collect": world.collect(torch.arange(2 * world.rank).view(-1, 2) + 10 * world.rank),
        "collect bool": world.collect(torch.ones(2 - world.rank % 2, dtype=torch.bool)),
        "agree": world.agree(world.rank == 0, world.rank == world.size - 1, False, True),
        "share": world.share({"rank": world.rank}),
    }
    tensors = mixed_tensors(world.rank)
    world.broadcast(iter(tensors))
    results["broadcast"] = [tensor.detach() for tensor in tensors]
    with world.main_first():
        if world.is_main:
            _note_slowly(out.with_name("read"), world.rank)
        results["main first"] = out.with_name("read").read_text()
    world.by_main(lambda: _note_slowly(out.with_name("written"), world.rank))
    results["by main"] = out.with_name("written").read_text()
    results["main refuses"] = _fail_first(world, InlayError("Write less."))
    results["main fails"] = _fail_first(world, KeyError("page"))
    return results


def batch_norm_case(world: World, out: Path) -> Results:
    results: Results = {}
    for name, case in NORM_CASES.items():
        first = sum(case.rows[: world.rank])
        with world.global_statistics():
            part = slice(first, first + case.rows[world.rank])
            results[name] = normalise(NormInputs(case), part, world.size)
    if world.is_main:
        # One process alone: anything said to the other would never be answered.
        rows, mean, var = torch.randn(4, 3), torch.randn(3), torch.rand(3)
        expected = functional.batch_norm(rows, mean, var)
        with GlobalBatchNorm():
            results["evaluation"] = torch.equal(functional.batch_norm(rows, mean, var), expected)
    with world.global_statistics(), torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(3)
        layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        output = layers(torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(2))[world.rows(8)])
        results["autocast"] = {"output": output.detach(), "var": layers[1].running_var}
    return results


def launch(case: str, processes: int, folder: Path) -> list[Results]:
    """Run a case in a process group and return the results of every process."""
    out = folder / "out"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += [__file__, case, str(out)]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as group:
        try:
            _, errors = group.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            # Killed, it would leave its processes behind; asked to end, it ends them.
            group.terminate()
            raise
    assert group.returncode == 0, errors
    assert "Warning" not in errors, errors
    return [torch.load(f"{out}.{rank}") for rank in range(processes)]


def _group_threads() -> list[str]:
    """Names of the native threads of process groups in this process; none where the system does not list threads."""
    names = (task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").glob("*"))
    return [name for name in names if "gloo" in name]


def _save_at_exit(results: Results, path: str) -> None:
    torch.save(results | {"group threads at exit": _group_threads()}, path)


def main(case: str, out: Path) -> None:
    results: Results = {}
    # What is registered before the group is joined runs after it was left.
    atexit.register(_save_at_exit, results, f"{out}.{os.environ['RANK']}")
    world = World.current()
    results |= {"world": world_case, "batch_norm": batch_norm_case}[case](world, out)
    results["training"] = {str(dtype): train(world, dtype) for dtype in (torch.float64, torch.float32)}
    # Listed last, as a thread gives itself its name a little after it has begun.
    results["group threads"] = _group_threads()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
