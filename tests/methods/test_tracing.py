"""The works of both kinds of stage can be compiled as one graph each."""

import copy
from collections.abc import Iterator

import pytest
import torch

from inlay.engine.batch import Batch
from inlay.engine.work import Work
from inlay.methods.supervised import BaseWork
from tiny_stage import base_task, batch_of, discovery_work, quick, tiny_task


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def traced_and_eager(work: Work, batch: Batch) -> None:
    """Compare losses and gradients of a whole graph with those of an eager pass."""
    eager = copy.deepcopy(work)
    traced = torch.compile(work, backend="aot_eager", fullgraph=True)
    found, wanted = traced(batch), eager(batch)
    assert found.keys() == wanted.keys() == work.weights(0.5).keys()
    for name, loss in wanted.items():
        torch.testing.assert_close(found[name], loss, rtol=1e-5, atol=1e-6)
    for losses in (found, wanted):
        torch.autograd.backward([torch.stack(list(losses.values())).sum()])
    for name, buffer in eager.named_buffers():
        torch.testing.assert_close(work.get_buffer(name), buffer, rtol=1e-5, atol=1e-6)
    moved = 0
    for name, parameter in eager.named_parameters():
        torch.testing.assert_close(work.get_parameter(name).grad, parameter.grad, rtol=1e-3, atol=1e-5)
        moved += parameter.grad is not None and bool(parameter.grad.any())
    assert moved > 0


CHANGES: dict[str, dict[str, float]] = {
    "inlay": {"assignment.information": 1.0, "assignment.partner_share": 0.3},
    "ncl": {"neighbourhood.queue": 40},
}


@pytest.mark.parametrize("name", ["inlay", "paper", "frost", "autonovel", "ncl", "dtc", "restune"])
def test_a_discovery_stage_is_one_graph(name: str) -> None:
    task = tiny_task(quick(name, CHANGES.get(name)))
    work = discovery_work(task)
    work.begin_epoch(0)
    traced_and_eager(work, batch_of(task))


def test_a_base_stage_is_one_graph() -> None:
    task = base_task(quick(changes={"base.contrastive": 1.0}).base)
    traced_and_eager(BaseWork(task), batch_of(task))
