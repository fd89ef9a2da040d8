"""The processes that train one network together, and what they say to each other."""

import atexit
import gc
import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.nn.parallel import DistributedDataParallel

from inlay.engine.batch_norm import GlobalBatchNorm
from inlay.errors import FailedElsewhereError, InlayError

__all__ = ["World"]

Value = TypeVar("Value")

_SET_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_MAIN = 0
_PATIENCE = timedelta(hours=3)
"""Long, as the others wait while the main process reads images; torchrun ends them at once if it dies."""


@dataclass(frozen=True)
class World:
    """The place of this process among those that train one network.

    Methods that speak to the other processes must be called by all of them, in the same order. In a world of one they
    return what they were given.

    Attributes:
        rank: Number of this process among all.
        size: Number of processes.
        local_rank: Number of this process among those on its machine.
        parallel: Whether there is a process group, which may be of one process.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    parallel: bool = False

    @staticmethod
    def current() -> "World":
        """Return the world of this process, and join its process group at the first call under torchrun."""
        if not _known:
            _known.append(_join())
        return _known[0]

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and speaks to the user."""
        return self.rank == _MAIN

    def rows(self, count: int) -> slice:
        """Return which rows of a batch of all processes are this one's: equal parts in the order of ranks.

        Args:
            count: Rows of the whole batch.

        Raises:
            ValueError: If the rows cannot be divided equally.
        """
        if count % self.size != 0:
            raise ValueError(f"{count} rows cannot be divided equally among {self.size} processes")
        own = count // self.size
        return slice(self.rank * own, (self.rank + 1) * own)

    def gather(self, rows: Tensor, dim: int = 0) -> Tensor:
        """Return the rows of all processes in the order of ranks, with gradient.

        Every process computes the same loss from the result, so each knows the whole gradient of it and needs only the
        part of its own rows. That part is multiplied by the number of processes: the gradient of a weight is the sum of
        what the rows of all processes give, while DistributedDataParallel takes the average. Weights that are used
        after gathering have the whole gradient in every process, and the average leaves it as it is.

        Args:
            rows: Part of this process, of the same shape in all processes.
            dim: Dimension along which the parts are joined.
        """
        if self.size == 1:
            return rows
        gathered: Tensor = _Gather.apply(rows, dim, self.rank, self.size)  # type: ignore[no-untyped-call]
        return gathered

    def collect(self, part: Tensor) -> Tensor:
        """Return the parts of all processes joined along the first dimension in the order of ranks, without gradient.

        Args:
            part: Part of this process, [N, ...]; N may differ between processes.
        """
        if self.size == 1:
            return part.detach()
        lengths = [torch.empty(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.full((1,), len(part), dtype=torch.int64))
        counts = [int(length) for length in lengths]
        padded = part.new_zeros(max(counts), *part.shape[1:])
        padded[: len(part)] = part.detach()
        parts = _all_gather(padded, self.size)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @torch.no_grad()
    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of the main process.

        They travel together as bytes, since hundreds of small messages would take far longer than one.

        Args:
            tensors: The same number, shapes, types and devices in the same order in all processes.
        """
        if self.size == 1:
            return
        by_device: dict[torch.device, list[Tensor]] = {}
        for tensor in tensors:
            by_device.setdefault(tensor.device, []).append(tensor)
        for group in by_device.values():
            pieces = [tensor.reshape(-1).view(torch.uint8) for tensor in group]
            message = torch.cat(pieces)
            dist.broadcast(message, _MAIN)
            received = torch.split(message, [len(piece) for piece in pieces])
            for tensor, piece in zip(group, received, strict=True):
                # Cloned, because a piece may start where its type must not.
                tensor.copy_(piece.clone().view(tensor.dtype).view_as(tensor))

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether any process raises it; the device that computes is not disturbed."""
        if self.size == 1:
            return flags
        raised = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(raised, dist.ReduceOp.MAX)
        return tuple(bool(flag) for flag in raised)

    def share(self, value: Value) -> Value:
        """Return the value of the main process.

        Args:
            value: Anything that can be pickled; that of the other processes is not looked at.
        """
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, _MAIN, device=torch.device("cpu"))
        return box[0]

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run a block in the main process, and in the others when that is done.

        Raises:
            FailedElsewhereError: In the other processes, if the block failed in the main process.
        """
        if not self.is_main:
            failure = self.share("")
            if failure:
                raise FailedElsewhereError(failure)
            yield
            return
        try:
            yield
        except BaseException as error:
            self.share(str(error) if isinstance(error, InlayError) else f"The main process failed with {error!r}.")
            raise
        self.share("")

    def by_main(self, action: Callable[[], object]) -> None:
        """Do something in the main process alone; the others wait for it.

        Raises:
            FailedElsewhereError: In the other processes, if it failed in the main process.
        """
        # What the others have read before must not change while they read it.
        self.agree(False)
        with self.main_first():
            if self.is_main:
                action()

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return a module whose gradients are averaged over the processes in its backward pass.

        Args:
            module: Module whose weights with gradient are used, if at all, in its own forward pass.
        """
        if not self.parallel:
            return module
        device = next(module.parameters()).device
        wrapped = DistributedDataParallel(
            module,
            device_ids=[device] if device.type == "cuda" else None,
            # Parts that a stage does not use stay unused throughout.
            static_graph=True,
            gradient_as_bucket_view=True,
        )
        # Global statistics keep the buffers equal. Set here, as the argument for it has two names among torch versions.
        wrapped.broadcast_buffers = False
        return wrapped

    def global_statistics(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass in which batch norm sees the rows of all processes."""
        return nullcontext() if self.size == 1 else GlobalBatchNorm()


# A list and no cached function, which a compiler of steps would look into.
_known: list[World] = []


def _join() -> World:
    if not all(name in os.environ for name in _SET_BY_TORCHRUN):
        return World()
    local_rank = int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.is_available()
    # A launcher that shows each process its own device alone leaves nothing to choose.
    if cuda and local_rank < torch.cuda.device_count():
        torch.cuda.set_device(local_rank)
    _use_own_share_of_cores()
    if not dist.is_initialized():
        # Imported later, as wrapping a module does, it would take the group as a default argument and never let it go.
        importlib.import_module("torch.distributed.nn.functional")
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=_PATIENCE)
        atexit.register(_leave)
    return World(dist.get_rank(), dist.get_world_size(), local_rank, parallel=True)


def _leave() -> None:
    # The threads of a group end with the last reference to it. One that still drops its work while the interpreter ends
    # aborts the process. Wrapped modules hold the group, and each other in circles.
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def _use_own_share_of_cores() -> None:
    # Torchrun writes 1 for a user who wrote nothing, which leaves most cores idle.
    if os.environ.get("OMP_NUM_THREADS", "1") == "1":
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // processes))


class _Gather(Function):
    """Rows of all processes; see `World.gather` for the factor in the backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, dim: int, rank: int, size: int) -> Tensor:
        ctx.dim, ctx.rank, ctx.size, ctx.length = dim, rank, size, rows.shape[dim]
        return torch.cat(_all_gather(rows, size), dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient.narrow(ctx.dim, ctx.rank * ctx.length, ctx.length) * ctx.size, None, None, None


def _all_gather(own: Tensor, size: int) -> list[Tensor]:
    own = own.contiguous()
    parts = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(parts, own)
    return parts
