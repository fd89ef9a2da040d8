"""What a GPU would refuse in a step that is recorded, seen on a CPU."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inlay.engine.batch import Batch
from inlay.engine.loop import Loop
from inlay.engine.work import Work
from inlay.pipeline import Workshop

__all__ = [
    "NotRecordable",
    "Seen",
    "StepWatch",
    "check_one_graph",
    "check_recordable",
    "check_recorded",
    "check_whole",
    "looking",
]


class NotRecordable(AssertionError):
    """A step does what no recording can repeat."""


# Three are taken before the recording.
_STEPS = 6
# What tells the host a number, or a shape that depends on one; what torch's solvers wait for; draws of a generator,
# which a recording would repeat; and numbers that are brought from the host.
_WAITING = {
    *("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount", "histc"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive"),
    *("linalg_eigh", "_linalg_eigh", "_linalg_svd", "linalg_inv_ex", "linalg_lu_factor_ex", "_linalg_solve_ex"),
    *("linalg_cholesky_ex", "linalg_qr", "linalg_lstsq"),
    *("normal_", "uniform_", "random_", "bernoulli", "bernoulli_", "exponential_", "multinomial", "native_dropout"),
    *("rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm"),
    *("lift_fresh", "_pin_memory"),
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
# These leave no operation behind on a CPU.
_READ_BY_THE_HOST: set[Any] = {Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__array__}


_MAKERS: set[Any] = {torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones, torch.zeros}


class _Calls(TorchFunctionMode):
    """Refuses what no operation tells of."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _READ_BY_THE_HOST:
            raise NotRecordable(f"{func.__name__} reads a tensor")
        if func in _MAKERS and (kwargs or {}).get("device") is None:
            raise NotRecordable(f"{func.__name__} makes a tensor without saying on which device")
        return func(*args, **(kwargs or {}))


class StepWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, refuses what waits for the device, and tensors that are made without saying on which.

    Attributes:
        trace: What was done: each operation with its numbers, and its tensors by their place in memory, or by which
            operation made them. A recording repeats just this.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace: list[tuple[object, ...]] = []
        self._made: dict[int, int] = {}
        # Memory that is freed would be that of other tensors next.
        self._kept: list[Tensor] = []
        self._calls = _Calls()

    def __enter__(self) -> "StepWatch":
        self._calls.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._calls.__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look at an operation, then do it."""
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        _check_operation(func, args, kwargs)
        inputs = tuple(self._named(leaf) for leaf in leaves)
        outputs = func(*args, **kwargs)
        known = {place for kind, place in inputs if kind == "there before"}
        for leaf in tree_leaves(outputs):
            if isinstance(leaf, Tensor) and (place := leaf.untyped_storage().data_ptr()) not in known:
                self._made.setdefault(place, len(self.trace))
                self._kept.append(leaf)
        self.trace.append((str(func), *inputs))
        return outputs

    def _named(self, leaf: Any) -> tuple[str, Any]:
        if not isinstance(leaf, Tensor):
            return "number", repr(leaf)
        place = leaf.untyped_storage().data_ptr()
        return ("made", self._made[place]) if place in self._made else ("there before", place)


def _check_operation(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    name = func.overloadpacket.__name__
    if name in _WAITING:
        raise NotRecordable(f"{func} waits for the device, or takes numbers from the host")
    if name in _INDEXING and any(index is not None and index.dtype == torch.bool for index in args[1]):
        raise NotRecordable(f"{func} with truth values waits for the device")
    if name == "repeat_interleave" and kwargs.get("output_size") is None:
        raise NotRecordable(f"{func} without a size waits for the device")


class Seen(Exception):
    """A loop has been looked at, and need not run."""


@dataclass(frozen=True)
class _Looking(Workshop):
    look: Callable[[Loop], object] = dataclasses.field(kw_only=True)
    runs: bool = True

    def made(self, loop: Loop) -> None:
        self.look(loop)
        if not self.runs:
            raise Seen


def looking(look: Callable[[Loop], object], runs: bool = True, device: str = "cpu") -> Workshop:
    """Return a workshop that looks at every loop before its first step.

    Args:
        look: What it does.
        runs: Whether the loops run then; if not, the first one raises `Seen`.
        device: Where the loops run.
    """
    return _Looking(device=torch.device(device), look=look, runs=runs)


def check_recorded(loop: Loop) -> None:
    """Check on a GPU that the steps of a loop are recorded, and that their losses are numbers.

    Args:
        loop: The loop, of which no step has been taken; weights and buffers of its work are as before in the end.
    """
    feed, settings = loop.feed, replace(loop.settings, pace="graph", epochs=_STEPS)
    with _untouched(loop.work) as work:
        trial = Loop(loop.name, work, settings, feed, loop.seed, loop.companions, last_step=_STEPS)
        trial.run()
        assert trial._stepper.steps_when_ready > 1
        assert bool(trial._stepper.values.isfinite().all())


def check_recordable(loop: Loop) -> None:
    """Check that all steps of a loop are one that can be recorded, as none has been taken yet.

    Args:
        loop: The loop; weights and buffers of its work are as before in the end.

    Raises:
        NotRecordable: If a step waits for the device, or if one in another epoch does something else.
    """
    batch = next(loop._batches())
    with _untouched(loop.work) as work:
        first, second = (_watched_step(work, batch, epoch) for epoch in range(2))
    for before, after in zip(first, second, strict=False):
        if before != after:
            raise NotRecordable(f"a step does {after} where one before did {before}")
    if len(first) != len(second):
        raise NotRecordable(f"a step has {len(second)} operations, one before had {len(first)}")


def _watched_step(work: Work, batch: Batch, epoch: int) -> list[tuple[object, ...]]:
    work.begin_epoch(epoch)
    with StepWatch() as watch:
        torch.autograd.backward([torch.stack(list(work(batch).values())).sum()])
    work.zero_grad(set_to_none=True)
    return watch.trace


def check_whole(loop: Loop) -> None:
    """Check that the step of a loop is one graph with the losses, gradients and buffers of an eager step.

    Args:
        loop: The loop, of which no step has been taken; weights and buffers of its work are as before in the end.
    """
    check_one_graph(loop.work, next(loop._batches()))


def check_one_graph(work: Work, batch: Batch) -> None:
    """Do the same with work that was never run, and a batch."""
    with _untouched(work):
        work.begin_epoch(0)
        found = _outcome(work, torch.compile(work, backend="aot_eager", fullgraph=True), batch)
    with _untouched(work):
        work.begin_epoch(0)
        wanted = _outcome(work, work, batch)
    assert found[0].keys() == wanted[0].keys() == work.weights(0.5).keys()
    assert any(bool(gradient.any()) for gradient in wanted[1].values())
    for mine, theirs, rough in zip(found, wanted, (1e-5, 1e-3, 1e-5), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=rough, atol=max(rough / 100, 1e-6))


def _outcome(
    work: Work, step: Callable[[Batch], dict[str, Tensor]], batch: Batch
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Losses, gradients and buffers after a step."""
    losses = step(batch)
    torch.autograd.backward([torch.stack(list(losses.values())).sum()])
    gradients = {name: p.grad.clone() for name, p in work.named_parameters() if p.grad is not None}
    return losses, gradients, {name: buffer.clone() for name, buffer in work.named_buffers()}


@contextmanager
def _untouched(work: Work) -> Iterator[Work]:
    """Train some work, then put weights and buffers back, in place, as losses may know parts of it by themselves."""
    state = {name: tensor.clone() for name, tensor in work.state_dict().items()}
    yield work.train()
    work.load_state_dict(state)
    work.zero_grad(set_to_none=True)
