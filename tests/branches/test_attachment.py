import copy

import torch
from torch import Tensor, nn

from inlay.branches import Targets, attach
from inlay.branches.attachment import (
    Attachment,
    attachments,
    buffers_outside,
    forget,
    remember,
    tensors_left_to_user,
)


class _Network(nn.Module):
    """A convolution with its norm, a loose norm and a head that has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.loose = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.head = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.also = self.head

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.loose(torch.relu(self.norm(self.conv(images))))
        out: Tensor = self.head(maps.mean((2, 3)))
        return out


def test_records_travel_with_copies_and_can_be_forgotten() -> None:
    record = Attachment(("head*",), frozenset({"head.weight"}), {"mean": torch.ones(2)})
    inner = nn.Linear(2, 2)
    remember(inner, record)
    whole = nn.Sequential(inner, nn.ReLU())
    whole.add_module("again", inner)
    assert attachments(whole) == {"0": record, "again": record}
    assert attachments(copy.deepcopy(whole))["0"].buffers["mean"] is not record.buffers["mean"]
    assert set(whole.state_dict()) == {"0.weight", "0.bias", "again.weight", "again.bias"}
    forget(whole)
    assert attachments(whole) == {}


def test_tensors_of_trainable_modules_are_found_whatever_their_other_names() -> None:
    network = _Network().eval()
    found = tensors_left_to_user(network, Targets(trainable=["head"]))
    state = network.state_dict(keep_vars=True)
    assert {name for name, tensor in state.items() if id(tensor) in found} == {
        f"{head}.{name}" for head in ("head", "also") for name in network.head.state_dict()
    }
    assert tensors_left_to_user(network, Targets()) == set()


def test_a_hybrid_remembers_the_buffers_outside_its_units() -> None:
    network = _Network().eval()
    hybrid = attach(network, torch.ones(2, 3, 4, 4), targets=Targets(trainable=["head"]))
    record = attachments(hybrid)[""]
    assert record.trainable == ("head",)
    assert record.yours == {f"{head}.{name}" for head in ("head", "also") for name in network.head.state_dict()}
    assert set(record.buffers) == {f"loose.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    hybrid.get_buffer("loose.running_mean").fill_(7)
    assert torch.equal(record.buffers["loose.running_mean"], torch.zeros(4))
    assert torch.equal(buffers_outside(hybrid, record.yours)["loose.running_mean"], torch.full((4,), 7.0))
